"""DINOv3 of transformers."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

import vitral
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder, vit
from vitral.models.attention import Attention


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


@pytest.mark.parametrize("name", ["hf_dinov3_gated", "hf_dinov3_biases"])
def test_a_gated_mlp_follows_the_activation_of_its_config(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", name))
    check_answers(loaded, name)
    assert vit(loaded).mlp.activation == "gelu"
    check_round_trip(loaded, tmp_path / "ours", "hf-dinov3")


def test_maps_without_a_bias_and_odd_hidden_widths_are_followed(tmp_path: Path) -> None:
    model = vit(vitral.load(folder(tmp_path, "hf_dinov3_biases")))
    assert isinstance(model.mixer, Attention)
    assert (model.mlp.hidden(24), model.mlp.bias, model.mixer.project_bias) == (42, False, False)


def test_the_rate_of_drop_path_is_the_same_in_every_layer(tmp_path: Path) -> None:
    block = vit(vitral.load(folder(tmp_path, "hf_dinov3_gated"))).block
    assert (block.drop_path_rate, block.drop_path_schedule) == (0.1, "constant")
