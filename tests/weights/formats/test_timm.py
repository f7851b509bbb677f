"""timm's Vision Transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import TOLERANCE, differences, fixture, put, rewritten, unlike, vit
from vitral.core.config import Size, parse_settings
from vitral.data.transforms.crop import Resize
from vitral.models import Attention, DistilledPool, MeanPool, Mlp, SwiGlu
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.timm import Timm
from vitral.weights.formats.timm_config import parse_config, parse_sizes
from vitral.weights.load import load

WIDE = ("mixer.heads=3", "image_size=32x48")
BARE = {
    "timm_vit": WIDE,
    "timm_vit_gap": WIDE,
    "timm_vit_registers": WIDE[1:],  # a norm of queries has the width of a head
    "timm_vit_map": (*WIDE, "mlp.activation=gelu"),
    "timm_hybrid_r26": WIDE,
}
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


def test_rows_of_registers_are_added_to_them(tmp_path: Path) -> None:
    folder, found = fixture("timm_registers_embedded", tmp_path / "a", notes=True)
    tokens = load(folder).model.state_dict()["prefix.tokens"]
    rows = found.weights["pos_embed"][0, 1:3]
    assert torch.equal(tokens[1:], found.weights["reg_token"][0] + rows)


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


@pytest.mark.parametrize(
    ("name", "notes", "value"),
    [
        ("timm_vit", {"pool": "avgmax"}, "avgmax"),
        ("timm_fc_norm", {"pool": "token"}, "token"),
        ("timm_vit", {"act_layer": "silu"}, "silu"),
    ],
)
def test_what_has_no_counterpart_here_is_refused(tmp_path: Path, name: str, notes: dict[str, str], value: str) -> None:
    arguments = {"img_size": [32, 48], "num_heads": 3} | {key: value for key, value in notes.items() if key != "pool"}
    config = {"architecture": "vit_tiny_patch16_224", "model_args": arguments, "pretrained_cfg": {"num_classes": 5}}
    config |= {"global_pool": notes["pool"]} if "pool" in notes else {}
    with raises("weights.unsupported", value):
        load(put(tmp_path / "a", reference(name).weights, config))


def test_a_query_that_gathers_from_patches_alone_is_refused_beside_other_tokens(tmp_path: Path) -> None:
    weights = reference("timm_vit_map").weights | {"cls_token": torch.zeros(1, 1, 36)}
    with raises("weights.unsupported", tmp_path / "a"):
        load(put(tmp_path / "a", weights), settings=parse_settings([*WIDE, "mlp.activation=gelu"]))


def test_a_gated_mlp_of_a_width_that_ours_cannot_have_is_refused(tmp_path: Path) -> None:
    weights = reference("timm_swiglu").weights
    for layer in range(2):
        weights[f"blocks.{layer}.mlp.fc1.weight"] = torch.zeros(2 * 107, 40)
        weights[f"blocks.{layer}.mlp.fc2.weight"] = torch.zeros(40, 107)
    with raises("weights.unsupported", 107, 8):
        load(put(tmp_path / "a", weights), settings={"mixer.heads": 2, "image_size": "32x48"})


def test_the_mean_that_the_notes_name_is_read_though_there_is_a_class_token(tmp_path: Path) -> None:
    config = {"architecture": "vit_tiny_patch16_224", "global_pool": "avg", "model_args": {"num_heads": 3}}
    folder = put(tmp_path / "a", reference("timm_vit").weights, config)
    assert vit(load(folder, settings={"image_size": "32x48"})).pool == MeanPool()


def test_models_with_one_layout_and_two_numbers_of_heads_are_told_apart_by_name(tmp_path: Path) -> None:
    weights = big_gap()
    config = {"architecture": "vit_base_patch16_gap_224.any", "pretrained_cfg": {"input_size": [3, 8, 8]}}
    loaded = load(put(tmp_path / "a", weights, config))
    mixer = vit(loaded).mixer
    assert isinstance(mixer, Attention)
    assert mixer.heads == 16
    with raises("weights.missing_setting", 12, 16, "mixer.heads=N"):
        load(put(tmp_path / "b", weights))


def big_gap() -> dict[str, torch.Tensor]:
    """A single layer of the width of a B, without a class token."""
    shapes: dict[str, Any] = {
        "patch_embed.proj.weight": (768, 1, 4, 4), "patch_embed.proj.bias": (768,), "pos_embed": (1, 4, 768),
        "blocks.0.attn.qkv.weight": (2304, 768), "blocks.0.attn.qkv.bias": (2304,),
        "blocks.0.attn.proj.weight": (768, 768), "blocks.0.mlp.fc1.weight": (8, 768), "blocks.0.mlp.fc1.bias": (8,),
        "blocks.0.mlp.fc2.weight": (768, 8),
    }  # fmt: skip
    norms = ("norm", "blocks.0.norm1", "blocks.0.norm2")
    shapes |= {f"{norm}.{part}": (768,) for norm in norms for part in ("weight", "bias")}
    shapes |= {f"blocks.0.{part}.bias": (768,) for part in ("attn.proj", "mlp.fc2")}
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ("stem=hybrid", "stem"),
        ("stem.norm=both", "stem.norm"),
        ("stem.bias=false", "stem.bias"),
        ("position=rope2d", "position"),
        ("block=post", "block"),
        ("mixer=local mixer.rows=4 mixer.columns=4", "mixer"),
        ("mixer.head_width=6", "mixer"),
        ("mixer.heads=1 mixer.project=false", "mixer"),
        ("pool=mean_all", "pool"),
        ("pool=attention", "pool"),
        ("pool=attention tokens.cls=false pool.heads=2", "pool"),
        ("pool=attention tokens.cls=false mlp=swiglu", "pool"),
        ("pool=distilled tokens.registers=2", "tokens"),
        ("pool=distilled tokens.registers=1 position.cls=false", "tokens"),
        ("pool=distilled tokens.registers=1 mlp=swiglu", "architecture"),
        ("tokens.norm=true stem.bias=false eps=1e-5 mlp=swiglu", "architecture"),
        ("head=tanh", "head"),
        ("eps=1e-5", "eps"),
        ("tokens.norm=true stem.bias=false", "eps"),
    ],
)
def test_a_part_without_counterpart_is_named(settings: str, field: str) -> None:
    assert not unlike(Timm())
    assert unlike(Timm(), *settings.split()) == [field]


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("timm_deit", "deit_base_distilled_patch16_224"),
        ("timm_fc_norm", "vit_base_patch16_224"),
        ("timm_clip", "vit_base_patch16_clip_224"),  # whose norms have another eps, which no argument gives
        ("timm_swiglu", "vit_giant_patch14_dinov2"),  # whose MLP is gated, which no argument gives
    ],
)
def test_what_is_written_is_described_as_timm_wants_it(tmp_path: Path, name: str, architecture: str) -> None:
    loaded = load(fixture(name, tmp_path / "a", notes=True)[0])
    tensors = rewritten(loaded, Timm(), tmp_path / "b")
    written = json.loads((tmp_path / "b/config.json").read_text())
    assert written["architecture"] == architecture
    assert written["label_names"] == list(LABELS)
    hidden = tensors["blocks.0.mlp.fc1.bias"].numel()
    assert int(40 * written["model_args"]["mlp_ratio"]) == hidden
    assert all(value is not None for value in written["model_args"].values())  # timm takes none for not given


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


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        ({"interpolation": "lanczos"}, "weights.unsupported", ("lanczos", "bilinear")),
        ({"crop_mode": "border"}, "weights.unsupported", ("border", "squash")),
        ({"crop_mode": "squash", "crop_pct": 0.9}, "weights.bad_config", ("crop_mode", "crop_pct", 0.9)),
        ({"mean": [0.5, 0.5], "std": [0.5, 0.5]}, "weights.bad_config", (2, 3)),
    ],
)
def test_a_way_of_seeing_that_is_unknown_here_is_refused(
    tmp_path: Path, change: dict[str, object], code: str, values: tuple[object, ...]
) -> None:
    found = reference("timm_clip")
    found.config["pretrained_cfg"] |= change
    folder = put(tmp_path / "a", found.weights, found.config)
    with raises(code, folder / "config.json", "pretrained_cfg", *values):
        load(folder)


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"model_args": {"num_heads": -3}}, "config.json, model_args.num_heads"),
        ({"pretrained_cfg": {"input_size": "x"}}, "config.json, pretrained_cfg.input_size"),
        ({"model_args": 3}, "model_args"),
    ],
)
def test_what_is_wrong_in_the_notes_is_told_as_theirs(tmp_path: Path, config: dict[str, object], value: str) -> None:
    ckpt = Checkpoint(tmp_path / "model.safetensors", {}, {"architecture": "vit_tiny_patch16_224", **config}, {})
    with raises("weights.bad_config", tmp_path, value):
        parse_config(ckpt)


def test_numbers_in_the_notes_are_checked_one_by_one() -> None:
    with raises("config.wrong_type", "pretrained_cfg.input_size"):
        parse_sizes({}, {"input_size": "x"})
