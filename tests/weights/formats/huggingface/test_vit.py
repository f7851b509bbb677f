"""ViT of transformers."""

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder
from vitral.models.head import NoHead


def inside(name: str) -> str:
    """What the library calls a tensor inside itself since version 5 (its conversion_mapping, `ViTModel`)."""
    name = name.replace("encoder.layer.", "layers.").replace("attention.output.dense", "attention.o_proj")
    for old, new in {"query": "q_proj", "key": "k_proj", "value": "v_proj"}.items():
        name = name.replace(f"attention.attention.{old}", f"attention.{new}")
    return re.sub(r"(\d)\.output\.dense", r"\1.mlp.fc2", name).replace("intermediate.dense", "mlp.fc1")


def test_a_classifier_answers_as_the_library_does(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path, "hf_vit"))
    check_answers(loaded, "hf_vit")
    assert loaded.bundle.classes == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3", "LABEL_4")


def test_a_tower_with_a_pooler_answers_as_the_library_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        loaded = vitral.load(folder(tmp_path, "hf_vit_pooler"))
    check_answers(loaded, "hf_vit_pooler")
    assert isinstance(loaded.bundle.model.head, NoHead)
    assert "ignored pooler.dense.bias and 1 more: a pooler that no head reads" in caplog.text


@pytest.mark.parametrize("name", ["hf_vit", "hf_vit_pooler"])
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", name))
    check_round_trip(loaded, tmp_path / "ours", "hf-vit")


def test_it_is_written_by_the_names_that_published_files_have(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_vit"))
    path = check_round_trip(loaded, tmp_path / "ours", "hf-vit")
    written = load_file(path / "model.safetensors")
    assert written.keys() == reference("hf_vit").weights.keys()


def test_the_names_inside_the_library_are_read_too(tmp_path: Path) -> None:
    new = {inside(name): tensor for name, tensor in reference("hf_vit").weights.items()}
    assert "vit.layers.0.attention.q_proj.weight" in new
    check_answers(vitral.load(folder(tmp_path, "hf_vit", tensors=new)), "hf_vit")


def test_a_tower_under_its_name_is_read_too(tmp_path: Path) -> None:
    named = {f"vit.{name}": tensor for name, tensor in reference("hf_vit_pooler").weights.items()}
    check_answers(vitral.load(folder(tmp_path, "hf_vit_pooler", tensors=named)), "hf_vit_pooler")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = reference("hf_vit").weights
    del weights["vit.encoder.layer.1.attention.attention.key.bias"]
    with raises("weights.missing_tensor", "vit.encoder.layer.1.attention.attention.key.bias"):
        vitral.load(folder(tmp_path, "hf_vit", tensors=weights))


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    weights = reference("hf_vit").weights
    weights["vit.encoder.layer.3.layernorm_after.bias"] = weights["vit.layernorm.bias"].clone()
    with raises("weights.unexpected_tensor", "vit.encoder.layer.3.layernorm_after.bias"):
        vitral.load(folder(tmp_path, "hf_vit", tensors=weights))


def test_a_transposed_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    weights = reference("hf_vit").weights
    name = "vit.encoder.layer.0.intermediate.dense.weight"
    weights[name] = weights[name].T.contiguous()
    with raises("weights.shape_mismatch", name, "(36, 60)", "(60, 36)"):
        vitral.load(folder(tmp_path, "hf_vit", tensors=weights))


def test_the_same_tensor_by_two_names_is_refused(tmp_path: Path) -> None:
    weights = reference("hf_vit").weights
    weights["layernorm.bias"] = weights["vit.layernorm.bias"].clone()
    with raises("weights.duplicate_tensor", "vit.layernorm.bias", "layernorm.bias"):
        vitral.load(folder(tmp_path, "hf_vit", tensors=weights))


def test_without_a_config_the_head_count_has_to_be_told(tmp_path: Path) -> None:
    path = alone(tmp_path, "hf_vit")
    with raises("weights.missing_setting", "--set mixer.heads=N"):
        vitral.load(path)
    loaded = vitral.load(path, settings={"mixer.heads": 3})
    check_answers(loaded, "hf_vit")
    assert loaded.bundle.classes == ("0", "1", "2", "3", "4")


def test_without_a_config_a_bare_tower_may_be_two_families(tmp_path: Path) -> None:
    weights = {name: tensor for name, tensor in reference("hf_vit_pooler").weights.items() if "pooler" not in name}
    path = alone(tmp_path, "hf_vit_pooler", weights)
    with raises("weights.ambiguous", "hf-vit", "hf-mae"):
        vitral.load(path, settings={"mixer.heads": 3})
    check_answers(vitral.load(path, settings={"mixer.heads": 3}, format="hf-vit"), "hf_vit_pooler")
