"""Bare files, without a config.json, of families that are told by their tensors or asked for."""

from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, folder, vit
from vitral.models.position import SinCos2d
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.huggingface.aimv2 import HfAimv2


@pytest.mark.parametrize("name", ["hf_dpt", "hf_vit_pooler"])
def test_the_encoder_of_dpt_and_a_vit_are_not_told_apart(tmp_path: Path, name: str) -> None:
    """Positions are resampled in another way, and the pooler may have another activation."""
    file = alone(tmp_path, name)
    with raises("weights.ambiguous", "hf-vit or hf-dpt", "--format"):
        vitral.load(file, settings={"mixer.heads": 3})


def test_a_format_decides_and_the_activation_of_the_pooler_is_stated(tmp_path: Path) -> None:
    heads = reference("hf_vit_pooler").config["num_attention_heads"]
    loaded = vitral.load(alone(tmp_path, "hf_vit_pooler"), settings={"mixer.heads": heads}, format="hf-vit")
    check_answers(loaded, "hf_vit_pooler")
    assert any("tanh" in line for line in loaded.bundle.assumptions)


def test_a_whole_dpt_is_told_by_its_prefix_and_its_neck_is_left_out(tmp_path: Path) -> None:
    found = reference("hf_dpt")
    encoder = {name: tensor for name, tensor in found.weights.items() if not name.startswith("pooler.")}
    whole = {f"dpt.{name.removeprefix('dpt.')}": tensor for name, tensor in encoder.items()}
    whole |= {"neck.convs.0.weight": torch.ones(4, 4, 3, 3), "head.head.0.weight": torch.ones(4, 4, 3, 3)}
    settings = {"mixer.heads": found.config["num_attention_heads"]}
    bare = vitral.load(alone(tmp_path / "bare", "hf_dpt", whole), settings=settings)
    with_config = vitral.load(folder(tmp_path / "whole", "hf_dpt", tensors=whole))
    images = found.answers["images"]
    assert bare.bundle.source.startswith("the encoder of Hugging Face's DPT")
    assert torch.equal(bare.model.forward_features(images).patches, with_config.model.forward_features(images).patches)
    assert vit(bare).position == vit(with_config).position


def test_yolos_is_opened_with_the_image_size_that_it_does_not_record(tmp_path: Path) -> None:
    config = reference("hf_yolos").config
    file, heads = alone(tmp_path, "hf_yolos"), {"mixer.heads": config["num_attention_heads"]}
    rows = reference("hf_yolos").weights["embeddings.position_embeddings"].shape[1] - 1 - config["num_detection_tokens"]
    with raises("weights.missing_setting", f"{rows} positions", "image_size=HEIGHTxWIDTH"):
        vitral.load(file, settings=heads)
    image = "x".join(map(str, config["image_size"]))
    loaded = vitral.load(file, settings=heads | {"image_size": image})
    check_answers(loaded, "hf_yolos")
    assert vit(loaded).position == vit(vitral.load(folder(tmp_path / "folder", "hf_yolos"))).position


@pytest.mark.parametrize("name", ["hf_aimv2", "hf_aimv2_native"])
def test_aimv2_is_told_by_its_tensors(tmp_path: Path, name: str) -> None:
    config, native = reference(name).config, name.endswith("native")
    heads = {"mixer.heads": config["num_attention_heads"]}
    file = alone(tmp_path, name)
    if native:
        with raises("weights.missing_setting", "image_size=HEIGHTxWIDTH"):
            vitral.load(file, settings=heads)
    loaded = vitral.load(file, settings=heads | ({"image_size": config["image_size"]} if native else {}))
    assert isinstance(vit(loaded).position, SinCos2d) is native
    check_answers(loaded, name)


def test_aimv2_of_a_published_width_has_heads_of_128() -> None:
    shapes = {
        "embeddings.patch_embed.weight": (1024, 3, 14, 14),
        "embeddings.position_embedding.weight": (256, 1024),
        "encoder.layers.0.ffn.gate_proj.weight": (2816, 1024),
    }
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    fields = HfAimv2().fields_from_tensors(Checkpoint(Path("file"), tensors, {}, {}))
    assert (fields["num_attention_heads"], fields["image_size"]) == (8, [224, 224])
