"""Every other family of transformers: the answers of the library, and the way back."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_again, check_answers, check_round_trip, folder, vit
from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.models.attention import Attention
from vitral.models.block import LayerScale
from vitral.models.embed import Patches
from vitral.models.head import ProjectionHead
from vitral.models.norm import RmsNorm
from vitral.models.pool import AttentionPool, ClassPool, MeanPool
from vitral.models.position import Combined, Learned1d, RelativeBias, RopeCls, SinCos2d
from vitral.weights.formats.huggingface.towers import HfJanus
from vitral.weights.formats.huggingface.vit import HfIjepa

# The family in which each is written, which may be another of the same layout.
FAMILIES = {
    "hf_msn": "hf-vit",
    "hf_ijepa": "hf-siglip",
    "hf_dpt": "hf-dpt",
    "hf_yolos": "hf-yolos",
    "hf_beit": "hf-beit",
    "hf_beit_shared": "hf-beit",
    "hf_data2vec": "hf-beit",
    "hf_metaclip": "hf-clip",
    "hf_blip": "hf-blip",
    "hf_siglip2": "hf-siglip2",
    "hf_aimv2": "hf-aimv2",
    "hf_aimv2_native": "hf-aimv2",
    "hf_tipsv2": "hf-tipsv2",
    "hf_internvl": "hf-internvl",
    "hf_internvl_qk_norm": "hf-internvl",
    "hf_mgp_str": "hf-mgp-str",
    "hf_sapiens2": "hf-sapiens2",
    "hf_pixio": "hf-pixio",
    "hf_janus": "hf-siglip",
    "hf_mlcd": "hf-mlcd",
    "hf_vitpose_pose": "hf-vitpose",
    "hf_vitpose_backbone": "hf-vitpose",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_it_answers_as_the_library_does(tmp_path: Path, name: str) -> None:
    check_answers(vitral.load(folder(tmp_path, name)), name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    check_round_trip(vitral.load(folder(tmp_path / "theirs", name)), tmp_path / "ours", FAMILIES[name])


def test_ijepa_comes_back_as_its_own_family_too(tmp_path: Path) -> None:
    check_again(vitral.load(folder(tmp_path / "theirs", "hf_ijepa")), tmp_path / "ours", HfIjepa())


def test_janus_comes_back_as_its_own_family_too_and_says_what_is_pooled(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_janus"))
    assert any("first patch" in line for line in loaded.bundle.assumptions)
    check_again(loaded, tmp_path / "ours", HfJanus())


@pytest.mark.parametrize(
    ("fields", "base"),
    [
        ({"rope_parameters": None}, 10_000.0),
        ({"rope_parameters": {"rope_theta": 50.0}}, 50.0),
        ({"rope_parameters": None, "rope_theta": 50.0}, 50.0),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 50.0}, 50.0),
        ({"rope_parameters": None, "rope_scaling": {"rope_type": "axial", "rope_theta": 50.0}}, 50.0),
    ],
)
def test_the_base_of_mlcd_may_stand_in_several_fields(tmp_path: Path, fields: dict[str, Any], base: float) -> None:
    assert vit(vitral.load(folder(tmp_path, "hf_mlcd", **fields))).position == RopeCls(base=base)


@pytest.mark.parametrize("rope", [{"rope_type": "yarn"}, {"rope_theta": 0}, [1]])
def test_another_rotation_than_that_of_mlcd_is_refused(tmp_path: Path, rope: object) -> None:
    with pytest.raises(WeightsError, match="rope_parameters"):
        vitral.load(folder(tmp_path, "hf_mlcd", rope_parameters=rope))


def test_keys_that_heads_of_sapiens2_share_are_repeated(tmp_path: Path) -> None:
    weights = reference("hf_sapiens2").weights
    qkv = vitral.load(folder(tmp_path, "hf_sapiens2")).model.state_dict()["blocks.1.mixer.heads.qkv.weight"]
    first, second = qkv.chunk(3)[1].chunk(2)
    assert torch.equal(first, weights["blocks.1.attn.wk.weight"])
    assert torch.equal(second, first)


def test_sapiens2_may_have_a_bias_of_keys_and_none_of_queries(tmp_path: Path) -> None:
    weights = dict(reference("hf_sapiens2").weights)
    queries = [name for name in weights if name.endswith(".attn.wq.bias")]
    zeros = weights | {name: torch.zeros_like(weights[name]) for name in queries}
    expected = vitral.load(folder(tmp_path / "a", "hf_sapiens2", tensors=zeros)).model.state_dict()
    for name in queries:
        del weights[name]
    found = vitral.load(folder(tmp_path / "b", "hf_sapiens2", tensors=weights, query_bias=False)).model.state_dict()
    assert queries
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_the_norm_of_internvl_is_that_of_all_heads(tmp_path: Path) -> None:
    mixer = vit(vitral.load(folder(tmp_path, "hf_internvl_qk_norm"))).mixer
    assert isinstance(mixer, Attention)
    assert (mixer.qk_norm, mixer.qk_norm_over) == (True, "width")
    with raises("weights.unsupported", "use_qk_norm"):
        vitral.load(folder(tmp_path, "hf_internvl_qk_norm", layer_norm_eps=1e-5))


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_bare_pixio_is_told_by_its_class_tokens_or_named(tmp_path: Path, tokens: int) -> None:
    """Inside the library its names are those of a ViT."""
    weights = dict(reference("hf_pixio").weights)
    weights["embeddings.cls_token"] = weights["embeddings.cls_token"][:, :tokens].clone()
    table = weights["embeddings.position_embeddings"]
    weights["embeddings.position_embeddings"] = table[:, 3 - tokens :].clone()
    inside = {
        name.replace("encoder.layer.", "layers.")
        .replace("norm1", "layernorm_before")
        .replace("norm2", "layernorm_after"): t
        for name, t in weights.items()
    }
    file, heads = alone(tmp_path, "hf_pixio", inside), {"mixer.heads": 3}
    if tokens == 1:
        with raises("weights.ambiguous", "hf-pixio", "hf-vit"):
            vitral.load(file, settings=heads)
    else:
        check_answers(vitral.load(file, settings=heads), "hf_pixio")


def test_beit_reads_the_norm_of_the_mean_and_has_a_table_in_each_layer(tmp_path: Path) -> None:
    model = vit(vitral.load(folder(tmp_path, "hf_beit")))
    assert model.position == RelativeBias(resampling="bilinear_centers")
    assert model.pool == MeanPool(norm="after")
    assert model.block.scale == LayerScale(init=0.1)
    assert (model.block.drop_path_rate, model.block.drop_path_schedule) == (0.2, "linear")


def test_beit_may_share_a_table_and_have_absolute_positions(tmp_path: Path) -> None:
    model = vit(vitral.load(folder(tmp_path, "hf_beit_shared")))
    inside = RelativeBias(shared=True, resampling="bilinear_centers")
    assert model.position == Combined(added=Learned1d(resampling="bicubic"), inside=inside)
    assert model.pool == ClassPool()


def test_beit_with_both_kinds_of_tables_has_their_sums(tmp_path: Path) -> None:
    weights, name = reference("hf_beit").weights, "beit.encoder.relative_position_bias.relative_position_bias_table"
    shared = torch.randn(52, 3)
    weights[name] = shared
    path = folder(tmp_path, "hf_beit", tensors=weights, use_shared_relative_position_bias=True)
    model = vitral.load(path).model
    table = model.state_dict()["blocks.1.mixer.heads.relation.table"]
    own = name.replace("encoder.", "encoder.layer.1.attention.attention.")
    assert torch.equal(table, weights[own] + shared)


def test_the_head_for_visual_tokens_is_left_out_and_its_norm_kept(tmp_path: Path) -> None:
    weights = {
        name: tensor
        for name, tensor in reference("hf_beit").weights.items()
        if not name.startswith(("classifier", "beit.pooler"))
    }
    weights |= {"layernorm.weight": torch.ones(24), "layernorm.bias": torch.zeros(24)}
    weights |= {"lm_head.weight": torch.ones(9, 24), "lm_head.bias": torch.zeros(9)}
    weights["beit.encoder.layer.0.attention.attention.relative_position_bias.relative_position_index"] = torch.ones(2)
    loaded = vitral.load(folder(tmp_path, "hf_beit", tensors=weights))
    assert vit(loaded).pool == ClassPool()
    tokens = loaded.model.forward_features(torch.rand(1, 3, 16, 16)).patches
    assert float(tokens.detach().mean(dim=-1).abs().max()) < 1e-5  # normalized


def test_a_key_bias_has_no_counterpart_in_beit(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_beit"))
    with torch.no_grad():
        loaded.model.get_parameter("blocks.0.mixer.heads.qkv.bias").add_(1)
    with raises("weights.no_counterpart", "keys"):
        check_round_trip(loaded, tmp_path / "ours", "hf-beit")


def test_detection_tokens_are_registers_with_positions_before_every_layer(tmp_path: Path) -> None:
    model = vit(vitral.load(folder(tmp_path, "hf_yolos")))
    assert model.tokens.registers == 2
    assert model.position == Learned1d(where="layers", register_rows=True, resampling="bicubic")


def test_the_pooler_of_dpt_has_the_activation_of_its_config(tmp_path: Path) -> None:
    head = vit(vitral.load(folder(tmp_path, "hf_dpt"))).head
    assert head == ProjectionHead(width=10, bias=True, activation="relu")


def test_aimv2_has_its_own_norms_and_pooling(tmp_path: Path) -> None:
    model = vit(vitral.load(folder(tmp_path, "hf_aimv2_native")))
    assert model.position == SinCos2d(endpoint=False)
    assert (model.norm, model.stem) == (RmsNorm(), Patches(patch=Size(4, 4), norm="after"))
    assert model.pool == AttentionPool(project_query=False, mlp_ratio="none")


def test_images_of_many_sizes_are_resized_to_one_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    processor = {"image_processor_type": "YolosImageProcessor", "size": {"shortest_edge": 512, "longest_edge": 1333}}
    with caplog.at_level("INFO"):
        needs = vitral.load(folder(tmp_path, "hf_yolos", processor=processor)).bundle.preprocessing
    assert needs.image_size == (16, 16)
    assert "the library keeps their aspect ratio" in caplog.text


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a hybrid": ("hf_dpt", {"is_hybrid": True}, "is_hybrid"),
    "another backbone": ("hf_dpt", {"backbone_config": {"model_type": "dinov2"}}, "backbone_config"),
    "a wide table": ("hf_beit", {"image_size": [8, 32]}, "image_size"),
    "norms across heads": ("hf_internvl", {"use_qk_norm": True}, "use_qk_norm"),
    "another norm": ("hf_internvl", {"norm_type": "batch_norm"}, "norm_type"),
    "another last norm": ("hf_internvl", {"norm_type": "rms_norm", "use_mean_pooling": False}, "use_mean_pooling"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_counterpart_is_refused_by_its_field(tmp_path: Path, case: str) -> None:
    name, change, field = REFUSED[case]
    with raises("weights.unsupported", f"config.json: {field}"):
        vitral.load(folder(tmp_path, name, **change))
