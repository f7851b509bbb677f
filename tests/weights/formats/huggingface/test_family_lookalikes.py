"""Bare files of models whose tensors are those of another one: asked about with the true model named, never guessed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, folder
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.registry import detect_format

# Published names and those inside the library, whose queries, keys and values are separate.
TIPSV2 = (
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^(cls_token|register_tokens|mask_token)$", r"embeddings.\1"),
    (r"^blocks\.", "encoder.layer."),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"^norm\.", "layernorm."),
)
DINOV2 = (
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
)


def renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def inside_tipsv2() -> dict[str, Tensor]:
    """The state dict of the library's TIPSv2."""
    found = {}
    for name, tensor in reference("hf_tipsv2").weights.items():
        if ".attn.qkv." in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                found[renamed(name.replace(".attn.qkv.", f".attention.{part}_proj."), TIPSV2)] = piece.clone()
        else:
            found[renamed(name, TIPSV2)] = tensor
    return found


def inside_dinov2() -> dict[str, Tensor]:
    """The state dict of the library's DINOv2 without its classifier."""
    weights = reference("hf_dinov2").weights
    return {
        renamed(name.removeprefix("dinov2."), DINOV2): tensor
        for name, tensor in weights.items()
        if not name.startswith("classifier.")
    }


def heads(name: str) -> dict[str, object]:
    return {"mixer.heads": reference(name).config["num_attention_heads"]}


@pytest.mark.parametrize("pickled", [False, True])
def test_the_state_dict_of_tipsv2_may_be_a_dinov2_with_registers(tmp_path: Path, pickled: bool) -> None:
    """Both resample positions, in other ways, and normalize images, with other numbers."""
    file = tmp_path / f"tower.{'pt' if pickled else 'safetensors'}"
    torch.save(inside_tipsv2(), file) if pickled else save_file(inside_tipsv2(), file)
    with raises("weights.ambiguous", "hf-dinov2 or hf-tipsv2", "--format"):
        vitral.load(file, settings=heads("hf_tipsv2"), allow_pickle=pickled)
    chosen = vitral.load(file, settings=heads("hf_tipsv2"), format="hf-tipsv2", allow_pickle=pickled)
    check_answers(chosen, "hf_tipsv2")


def test_a_published_tipsv2_is_told_by_the_names_of_its_mlp(tmp_path: Path) -> None:
    loaded = vitral.load(alone(tmp_path, "hf_tipsv2"), settings=heads("hf_tipsv2"))
    assert loaded.bundle.source.startswith("Hugging Face's TIPSv2")
    check_answers(loaded, "hf_tipsv2")


def test_a_published_tipsv2_with_a_gated_mlp_may_be_facebooks_dinov2(tmp_path: Path) -> None:
    tensors = {
        name.replace("mlp.c_fc", "mlp.w12").replace("mlp.c_proj", "mlp.w3"): tensor
        for name, tensor in reference("hf_tipsv2").weights.items()
    }
    tensors["register_tokens"] = tensors["register_tokens"][:, :1].clone()
    with raises("weights.ambiguous", "hf-tipsv2", "dinov2-facebook"):
        vitral.load(alone(tmp_path, "hf_tipsv2", tensors), settings=heads("hf_tipsv2"))


def test_the_state_dict_of_dinov2_may_be_that_of_a_detector_with_windows(tmp_path: Path) -> None:
    file = alone(tmp_path, "hf_dinov2", inside_dinov2())
    with raises("weights.ambiguous", "hf-dinov2", "RF-DETR"):
        vitral.load(file, settings=heads("hf_dinov2"))
    chosen, found = vitral.load(file, settings=heads("hf_dinov2"), format="hf-dinov2"), reference("hf_dinov2").answers
    tokens = torch.cat(chosen.model.forward_features(found["images"])[:3], dim=1)
    assert torch.allclose(tokens, found["tokens"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("pooled", "others"), [(True, "Phi-4 multimodal"), (False, "Idefics2")])
def test_the_tower_of_siglip_alone_may_be_one_that_packs_patches(tmp_path: Path, pooled: bool, others: str) -> None:
    tensors = reference("hf_siglip_uneven").weights
    tower = {name: tensor for name, tensor in tensors.items() if pooled or "head." not in name}
    with raises("weights.ambiguous", "hf-siglip", others):
        vitral.load(alone(tmp_path, "hf_siglip_uneven", tower), settings={"mixer.heads": 3})


def test_siglip_2_is_told_by_its_map_of_patches_and_asked_for(tmp_path: Path) -> None:
    file = alone(tmp_path, "hf_siglip2")
    with raises("weights.ambiguous", "hf-siglip2"):
        vitral.load(file, settings=heads("hf_siglip2"))
    with raises("weights.missing_setting", "patches", "config.json"):
        vitral.load(file, settings=heads("hf_siglip2"), format="hf-siglip2")


@pytest.mark.parametrize("name", ["hf_clip_vision", "hf_blip"])
def test_what_no_tensor_shows_is_asked_for_with_the_format_that_was_told(tmp_path: Path, name: str) -> None:
    """The activation of CLIP, and the eps of BLIP, differ between published models."""
    with raises("weights.bad_config", name.removesuffix("_vision").replace("_", "-"), "config.json"):
        vitral.load(alone(tmp_path, name), settings=heads(name))


@pytest.mark.parametrize("name", ["hf_vit", "hf_msn"])
def test_a_bare_classifier_may_be_of_vit_or_of_msn_which_has_another_eps(tmp_path: Path, name: str) -> None:
    file, given = alone(tmp_path, name), heads(name)
    with raises("weights.ambiguous", "hf-vit or hf-vit-msn", "--format"):
        vitral.load(file, settings=given)
    chosen = vitral.load(file, settings=given, format="hf-vit-msn" if name == "hf_msn" else "hf-vit")
    check_answers(chosen, name)
    assert chosen.model.config == vitral.load(folder(tmp_path / "whole", name)).model.config
    assert any("layer_norm_eps" in line for line in chosen.bundle.assumptions)


@pytest.mark.parametrize("name", ["hf_mlcd", "hf_vitpose_backbone"])
def test_a_bare_tower_without_a_square_of_positions_needs_its_image_size(tmp_path: Path, name: str) -> None:
    file, given = alone(tmp_path, name), {"mixer.heads": reference(name).config["num_attention_heads"]}
    with raises("weights.missing_setting", name.removesuffix("_backbone").replace("_", "-"), "image_size="):
        vitral.load(file, settings=given)
    check_answers(vitral.load(file, settings={**given, "image_size": "16x16" if "mlcd" in name else "24x16"}), name)


def test_experts_of_vitpose_are_refused_by_their_names_and_by_their_field(tmp_path: Path) -> None:
    found = dict(reference("hf_vitpose_backbone").weights)
    with raises("weights.unsupported", "num_experts"):
        vitral.load(folder(tmp_path / "whole", "hf_vitpose_backbone", num_experts=6))
    experts = {f"encoder.layer.{layer}.mlp.experts.0.weight": torch.ones(6, 48) for layer in range(3)}
    with raises("weights.unknown_format", "ViTPose with experts"):
        vitral.load(alone(tmp_path, "hf_vitpose_backbone", found | experts), settings=heads("hf_vitpose_backbone"))


@pytest.mark.parametrize(
    ("mark", "title"),
    [
        ("embeddings.cls_register_token", "RADIO"),
        ("vit_merger.self_attn.q_proj.weight", "MiniCPM-V"),
    ],
)
def test_towers_that_are_no_plain_vits_are_named(tmp_path: Path, mark: str, title: str) -> None:
    tensors = dict(reference("hf_siglip_uneven").weights) | {mark: torch.ones(4)}
    with raises("weights.unknown_format", title):
        vitral.load(alone(tmp_path, "hf_siglip_uneven", tensors), settings={"mixer.heads": 3})


@pytest.mark.parametrize(("name", "format"), [("hf_dinov3", "hf-dinov3"), ("hf_sapiens2", "hf-sapiens2")])
def test_the_state_dicts_of_dinov3_and_sapiens2_are_told_apart_by_their_norms(name: str, format: str) -> None:
    inside = {}
    for key, tensor in reference(name).weights.items():
        found = re.sub(r"^layer\.", "model.layer.", key)
        found = re.sub(r"^blocks\.(\d+)\.attn\.w([qkv])\.", r"model.layer.\1.attention.\2_proj.", found)
        found = re.sub(r"^blocks\.(\d+)\.attn\.gamma\.weight$", r"model.layer.\1.layer_scale1.lambda1", found)
        found = re.sub(r"^blocks\.(\d+)\.ln([12])\.", r"model.layer.\1.norm\2.", found)
        found = re.sub(r"^storage_tokens$", "embeddings.register_tokens", found)
        found = re.sub(r"^patch_embed\.projection\.", "embeddings.patch_embeddings.", found)
        inside[found] = tensor
    assert detect_format(Checkpoint(Path("file"), inside, {}, {})).name == format


def test_the_backbone_of_pixio_is_claimed_by_it_and_nothing_else() -> None:
    inside = {f"pixio.{name}": tensor for name, tensor in reference("hf_pixio").weights.items()}
    assert detect_format(Checkpoint(Path("file"), inside, {}, {})).name == "hf-pixio"


def test_a_bare_deit_of_one_channel_may_be_a_model_of_sound(tmp_path: Path) -> None:
    weights = dict(reference("hf_deit").weights)
    stem = next(name for name in weights if name.endswith("patch_embeddings.projection.weight"))
    path = alone(tmp_path, "hf_deit", {**weights, stem: weights[stem][:, :1]})
    with raises("weights.ambiguous", "hf-deit", "Audio Spectrogram Transformer"):
        vitral.load(path)


@pytest.mark.parametrize("part", ["key", "value"])
def test_biases_that_the_config_denies_are_refused(tmp_path: Path, part: str) -> None:
    """The library ignores them with a warning."""
    weights = reference("hf_dinov3").weights
    query = next(name for name in weights if name.endswith("layer.0.attention.q_proj.bias"))
    bias = query.replace("q_proj", f"{part[0]}_proj")
    denied: dict[str, Any] = {f"{part}_bias": False}
    path = folder(tmp_path, "hf_dinov3", tensors={**weights, bias: weights[query].clone()}, **denied)
    with raises("weights.bad_config", f"{part}_bias", "_proj.bias"):
        vitral.load(path)
    (path / "config.json").unlink()
    assert vitral.load(path, settings={"mixer.heads": 3}).bundle.model  # nothing denies them


def test_a_norm_that_the_config_of_beit_denies_is_refused(tmp_path: Path) -> None:
    weights = reference("hf_beit").weights
    norms = {name.replace("pooler.", ""): tensor for name, tensor in weights.items() if "pooler." in name}
    rest = {name: tensor for name, tensor in weights.items() if "pooler." not in name}
    assert len(norms) == 2
    with raises("weights.bad_config", "use_mean_pooling", "layernorm.weight"):
        vitral.load(folder(tmp_path, "hf_beit", tensors=rest | norms))
