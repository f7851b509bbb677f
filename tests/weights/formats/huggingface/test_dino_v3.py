"""DINOv3 of transformers."""

from pathlib import Path

from safetensors.torch import load_file

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder


def test_it_answers_as_the_library_does(tmp_path: Path) -> None:
    check_answers(vitral.load(folder(tmp_path, "hf_dinov3")), "hf_dinov3")


def test_it_comes_back_bit_for_bit_with_a_bias_of_zeros_for_its_keys(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_dinov3"))
    path = check_round_trip(loaded, tmp_path / "ours", "hf-dinov3")
    keys = {name for name in load_file(path / "model.safetensors") if "k_proj.bias" in name}
    assert keys == {"layer.0.attention.k_proj.bias", "layer.1.attention.k_proj.bias"}


def test_the_names_inside_the_library_are_read_too(tmp_path: Path) -> None:
    new = {name.replace("layer.", "model.layer.", 1): tensor for name, tensor in reference("hf_dinov3").weights.items()}
    check_answers(vitral.load(folder(tmp_path, "hf_dinov3", tensors=new)), "hf_dinov3")


def test_without_a_config_names_and_shapes_tell(tmp_path: Path) -> None:
    check_answers(vitral.load(alone(tmp_path, "hf_dinov3"), settings={"mixer.heads": 3}), "hf_dinov3")


def test_maps_without_a_bias_are_refused(tmp_path: Path) -> None:
    with raises("weights.unsupported", "config.json: mlp_bias", False):
        vitral.load(folder(tmp_path, "hf_dinov3", mlp_bias=False))
