"""timm's Vision Transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import TOLERANCE, differences, fixture, put, rewritten, vit
from vitral.core.config import Size, parse_settings
from vitral.data.transforms.crop import Resize
from vitral.models import Attention, ClassPool, DistilledHead, DistilledPool, MeanPool, Mlp, SwiGlu
from vitral.weights.formats.timm import Timm
from vitral.weights.load import load, open_model

WIDE = ("mixer.heads=3", "image_size=32x48")
BARE = {
    "timm_vit": WIDE,
    "timm_vit_gap": WIDE,
    "timm_vit_registers": WIDE[1:],  # a norm of queries has the width of a head
    "timm_vit_map": (*WIDE, "mlp.activation=gelu"),
    "timm_hybrid_r26": WIDE,
}
FAMILIES = (
    "timm_rpn", "timm_parallel", "timm_branches", "timm_aimv2", "timm_cropped", "timm_prefix", "timm_eva", "timm_eva02",
    "timm_eva02_clip", "timm_eva02_post", "timm_dinov3", "timm_rope_mixed", "timm_pe", "timm_grouped", "timm_beit",
    "timm_relpos", "timm_srelpos", "timm_naflex",
)  # fmt: skip
NOTED = ("timm_deit", "timm_fc_norm", "timm_clip", "timm_swiglu", "timm_registers_embedded")
LABELS = ("ant", "bee", "cat", "dog", "eel")


@pytest.mark.parametrize("name", BARE)
def test_a_bare_file_with_what_it_does_not_tell_answers_as_timm_does(tmp_path: Path, name: str) -> None:
    folder, found = fixture(name, tmp_path / "a")
    loaded = load(folder, settings=parse_settings([*BARE[name]]))
    assert max(differences(loaded.model, found.answers)) <= TOLERANCE
    if name == "timm_hybrid_r26":  # is read alone
        with torch.no_grad():
            features = loaded.model.get_submodule("stem.body")(found.answers["images"])
        assert float((features - found.answers["features"]).abs().max()) <= TOLERANCE
        return
    written = rewritten(loaded, Timm(), tmp_path / "b")
    assert written.keys() == found.weights.keys()
    assert all(torch.equal(tensor, found.weights[key]) for key, tensor in written.items())


@pytest.mark.parametrize("name", NOTED)
def test_a_folder_of_the_hub_needs_no_settings(tmp_path: Path, name: str) -> None:
    folder, found = fixture(name, tmp_path / "a", notes=True)
    loaded = load(folder)
    model, bundle = loaded
    assert max(differences(model, found.answers)) <= TOLERANCE
    assert bundle.classes == LABELS
    assert bundle.model.image_size == Size(32, 48)
    assert rewritten(loaded, Timm(), tmp_path / "b").keys() == found.weights.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_class_of_timm_answers_as_timm_does_at_both_sizes(tmp_path: Path, name: str) -> None:
    folder, found = fixture(name, tmp_path / "a", notes=True)
    loaded = load(folder)
    assert max(differences(loaded.model, found.answers)) <= TOLERANCE
    if name != "timm_naflex":  # which is only read
        rewritten(loaded, Timm(), tmp_path / "b")


def test_the_heads_of_deit_stay_apart_and_come_back(tmp_path: Path) -> None:
    folder, found = fixture("timm_deit", tmp_path / "a", notes=True)
    loaded = load(folder)
    assert isinstance(vit(loaded).head, DistilledHead)
    written = rewritten(loaded, Timm(), tmp_path / "b")
    heads = [name for name in found.weights if name.startswith("head")]
    assert len(heads) == 4
    assert all(torch.equal(written[name], found.weights[name]) for name in heads)


def test_deit_without_heads_gives_the_mean_of_both_tokens_as_timm_does(tmp_path: Path) -> None:
    found = reference("timm_deit")
    weights = {name: tensor for name, tensor in found.weights.items() if not name.startswith("head")}
    config = found.config | {"num_classes": 0, "model_args": found.config["model_args"] | {"num_classes": 0}}
    loaded = load(put(tmp_path / "a", weights, config))
    with torch.no_grad():
        pooled, tokens = loaded.model(found.answers["images"]), found.answers["tokens"]
    assert torch.allclose(pooled, tokens[:, :2].mean(dim=1), rtol=0, atol=TOLERANCE)
    assert rewritten(loaded, Timm(), tmp_path / "b").keys() == weights.keys()


def test_parts_are_recognized(tmp_path: Path) -> None:
    models = [vit(load(fixture(name, tmp_path / name, notes=True)[0])) for name in NOTED]
    deit, normed, clip, gated, registers = models
    assert isinstance(deit.pool, DistilledPool)
    assert normed.pool == MeanPool(norm="after")
    assert clip.mlp == Mlp(ratio=2.0, activation="quick_gelu")
    assert (clip.tokens.norm, clip.eps) == (True, 1e-5)
    assert isinstance(gated.mlp, SwiGlu)
    assert registers.tokens.registers == 2


def test_the_notes_tell_what_images_need(tmp_path: Path) -> None:
    folder, found = fixture("timm_clip", tmp_path / "a", notes=True)
    needs = load(folder).bundle.preprocessing
    assert needs.normalize.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert needs.image_size == Size(32, 48)
    found.config["pretrained_cfg"] |= {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bilinear"}
    squashed = load(put(tmp_path / "b", found.weights, found.config)).bundle.preprocessing
    assert squashed.crop == Resize(filter="bilinear")


def test_registers_keep_rows_of_their_own(tmp_path: Path) -> None:
    folder, found = fixture("timm_registers_embedded", tmp_path / "a", notes=True)
    own = load(folder).model.state_dict()
    assert torch.equal(own["prefix.tokens"][1:], found.weights["reg_token"][0])
    assert torch.equal(own["position.table"], found.weights["pos_embed"])


@pytest.mark.parametrize(
    ("name", "hints", "code", "values"),
    [
        ("timm_vit", ("image_size=32x48",), "weights.missing_setting", (36, "vitral convert", "mixer.heads=N")),
        ("timm_vit_gap", ("mixer.heads=3",), "weights.missing_setting", (24, "image_size=HEIGHTxWIDTH")),
        (
            "timm_clip",
            ("mixer.heads=2", "image_size=32x48"),
            "weights.missing_setting",
            ("mlp.activation=quick_gelu", "CLIP"),
        ),
        ("timm_vit_map", WIDE, "weights.missing_setting", ("mlp.activation=gelu_tanh", "SigLIP")),
        ("timm_vit", ("mixer.heads=5", "image_size=32x48"), "weights.bad_setting", ("mixer.heads", 36, 5)),
    ],
)
def test_what_a_bare_file_does_not_tell_is_asked_for(
    tmp_path: Path, name: str, hints: tuple[str, ...], code: str, values: tuple[object, ...]
) -> None:
    folder, _ = fixture(name, tmp_path / "a")
    with raises(code, *values):
        load(folder, settings=parse_settings([*hints]))


@pytest.mark.parametrize("name", ["blocks.1.attn.qkv.bias", "norm.weight", "patch_embed.proj.bias", "pos_embed"])
def test_a_tensor_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    weights = reference("timm_vit").weights
    del weights[name]
    with raises("weights.missing_tensor", name):
        load(put(tmp_path / "a", weights), settings=parse_settings([*WIDE]))


SIZES = {"img_size": [32, 48], "num_heads": 3, "embed_dim": 36, "depth": 2, "patch_size": 8, "mlp_ratio": 2.0}


def noted(name: str, **arguments: object) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights of a fixture without a config.json, and one for them."""
    weights = reference(name).weights
    hidden = weights["blocks.0.mlp.fc1.bias"].numel()
    sizes = SIZES | {"mlp_ratio": (hidden + 0.5) / 36}
    return weights, {"architecture": "vit_tiny_patch16_224", "model_args": sizes | arguments}


@pytest.mark.parametrize("pool", ["avgmax", "max", "prr"])
def test_a_pool_without_counterpart_is_refused(tmp_path: Path, pool: str) -> None:
    weights, config = noted("timm_vit")
    with raises("weights.unsupported", pool, "global_pool"):
        load(put(tmp_path / "a", weights, config | {"global_pool": pool}))


def test_the_mean_that_the_notes_name_is_read_though_there_is_a_class_token(tmp_path: Path) -> None:
    weights, config = noted("timm_vit")
    assert vit(load(put(tmp_path / "a", weights, config))).pool == ClassPool()
    assert vit(load(put(tmp_path / "b", weights, config | {"global_pool": "avg"}))).pool == MeanPool()


def test_dropout_of_the_notes_is_carried_into_the_bundle(tmp_path: Path) -> None:
    rates = {"pos_drop_rate": 0.1, "proj_drop_rate": 0.2, "attn_drop_rate": 0.3, "drop_path_rate": 0.4}
    weights, config = noted("timm_vit", **rates, drop_rate=0.5)
    loaded = load(put(tmp_path / "a", weights, config))
    model = vit(loaded)
    assert isinstance(model.mixer, Attention)
    assert (model.tokens.dropout, model.mixer.attention_dropout) == (0.1, 0.3)
    assert (model.mlp.dropout, model.mixer.dropout, model.block.drop_path_rate) == (0.2, 0.2, 0.4)
    assert any("drop_rate=0.5" in line for line in loaded.bundle.assumptions)  # ours have none before the head


def test_a_gated_mlp_of_any_width_is_read(tmp_path: Path) -> None:
    weights = reference("timm_swiglu").weights
    for layer in range(2):
        weights[f"blocks.{layer}.mlp.fc1.weight"] = torch.zeros(2 * 107, 40)
        weights[f"blocks.{layer}.mlp.fc1.bias"] = torch.zeros(2 * 107)
        weights[f"blocks.{layer}.mlp.fc2.weight"] = torch.zeros(40, 107)
    loaded = load(put(tmp_path / "a", weights), settings={"mixer.heads": 2, "image_size": "32x48"})
    assert vit(loaded).mlp.hidden(40) == 107


CONTRADICTIONS: list[tuple[str, object, tuple[object, ...]]] = [
    ("depth", 7, ("model_args.depth", 7, 2)),
    ("class_token", False, ("model_args.class_token", False, True)),
]


@pytest.mark.parametrize(("name", "value", "values"), CONTRADICTIONS)
def test_tensors_of_another_model_than_the_noted_one_are_refused(
    tmp_path: Path, name: str, value: object, values: tuple[object, ...]
) -> None:
    found = reference("timm_clip")
    found.config.setdefault("model_args", {})[name] = value
    folder = put(tmp_path / "a", found.weights, found.config)
    with raises("weights.config_mismatch", folder / "config.json", *values):
        load(folder)


def test_constants_of_older_versions_are_ignored_and_named(tmp_path: Path) -> None:
    found = reference("timm_beit")
    extra = {"blocks.0.attn.relative_position_index": torch.zeros(17, 17, dtype=torch.int64)}
    extra |= {f"blocks.{layer}.attn.k_bias": torch.zeros(16) for layer in range(2)}
    loaded = open_model(put(tmp_path / "a", found.weights | extra, found.config))
    assert max(differences(loaded.loaded.model, found.answers)) <= TOLERANCE
    assert any("relative_position_index" in line for line in loaded.messages)
    with raises("weights.unexpected_tensor", "k_bias"):
        load(put(tmp_path / "b", found.weights | {"blocks.0.attn.k_bias": torch.ones(16)}, found.config))


def test_the_hidden_layer_before_the_head_is_read(tmp_path: Path) -> None:
    weights, config = noted("timm_vit")
    hidden, bias, head = torch.randn(12, 36), torch.randn(12), torch.randn(5, 12)
    pooled = load(put(tmp_path / "a", weights, config)).model.forward_pooled
    weights |= {"pre_logits.fc.weight": hidden, "pre_logits.fc.bias": bias, "head.weight": head}
    model = load(put(tmp_path / "b", weights, config)).model
    images = reference("timm_vit").answers["images"]
    with torch.no_grad():
        expected = torch.tanh(pooled(images) @ hidden.T + bias) @ head.T + weights["head.bias"]
        torch.testing.assert_close(model(images), expected)


def test_an_architecture_that_is_not_known_is_read_from_its_tensors_and_arguments(tmp_path: Path) -> None:
    weights, config = noted("timm_vit", global_pool="avg", fc_norm=False)
    loaded = load(put(tmp_path / "a", weights, config | {"architecture": "vit_of_mine", "label_names": [*LABELS]}))
    assert vit(loaded).pool == MeanPool()
    assert loaded.bundle.classes == LABELS
    assert any("GELU" in line for line in loaded.bundle.assumptions)
