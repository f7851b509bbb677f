"""ViT of transformers."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import (
    TOLERANCE,
    alone,
    check_answers,
    check_round_trip,
    folder,
    largest_difference,
    vit,
)
from vitral.models.attention import Attention
from vitral.models.head import ProjectionHead


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


def test_a_pooler_is_what_the_model_returns(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path, "hf_vit_pooler"))
    check_answers(loaded, "hf_vit_pooler")
    assert loaded.bundle.model.head == ProjectionHead(width=36, bias=True, activation="tanh")
    assert loaded.bundle.task == "features"


def test_a_pooler_that_the_classifier_does_not_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = reference("hf_vit").weights
    weights |= {"vit.pooler.dense.weight": torch.ones(36, 36), "vit.pooler.dense.bias": torch.ones(36)}
    with caplog.at_level("INFO"):
        check_answers(vitral.load(folder(tmp_path, "hf_vit", tensors=weights)), "hf_vit")
    assert "a pooler that the classifier does not read" in caplog.text


def test_any_activation_that_torch_has_is_followed(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_vit_relu"))
    check_answers(loaded, "hf_vit_relu")
    assert vit(loaded).mlp.activation == "relu"
    check_round_trip(loaded, tmp_path / "ours", "hf-vit")


def test_rates_of_dropout_are_carried_into_the_bundle_and_back(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_vit_relu"))
    model = vit(loaded)
    assert isinstance(model.mixer, Attention)
    assert (model.tokens.dropout, model.mixer.dropout, model.mixer.attention_dropout) == (0.1, 0.1, 0.2)
    assert (model.mlp.dropout, model.mlp.hidden_dropout) == (0.1, 0.0)  # the library drops what leaves the MLP
    written = json.loads((check_round_trip(loaded, tmp_path / "ours", "hf-vit") / "config.json").read_text())
    assert (written["hidden_dropout_prob"], written["attention_probs_dropout_prob"]) == (0.1, 0.2)


def test_a_rate_of_dropout_that_is_none_is_refused(tmp_path: Path) -> None:
    with raises("weights.bad_config", "hidden_dropout_prob", 1.5):
        vitral.load(folder(tmp_path, "hf_vit", hidden_dropout_prob=1.5))


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
        vitral.load(path, format="hf-vit")
    loaded = vitral.load(path, settings={"mixer.heads": 3}, format="hf-vit")
    check_answers(loaded, "hf_vit")
    assert loaded.bundle.classes == ("0", "1", "2", "3", "4")


def test_without_a_config_a_bare_tower_may_be_two_families(tmp_path: Path) -> None:
    weights = {name: tensor for name, tensor in reference("hf_vit_pooler").weights.items() if "pooler" not in name}
    path = alone(tmp_path, "hf_vit_pooler", weights)
    with raises("weights.ambiguous", "hf-vit", "hf-mae"):
        vitral.load(path, settings={"mixer.heads": 3})
    model, answers = (
        vitral.load(path, settings={"mixer.heads": 3}, format="hf-vit").model,
        reference("hf_vit_pooler").answers,
    )
    tokens = model.forward_features(answers["images"]).cls.detach()
    assert largest_difference(tokens, answers["tokens"][:, :1]) <= TOLERANCE
