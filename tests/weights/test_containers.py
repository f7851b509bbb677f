"""Checkpoints that hold more than one state dict: the only one is found, of several the user chooses by key."""

import argparse
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import put
from vitral.recipes.recipe import Recipe
from vitral.weights.containers import select_state_dict
from vitral.weights.load import LoadOptions, open_model
from vitral.weights.reader import ReadOptions
from vitral.weights.tensors import read_torch_pickle

ONE, TWO = {"a.weight": torch.ones(2, 2)}, {"a.weight": torch.zeros(2, 2)}
OPTIMIZER = {"state": {0: {"exp_avg": torch.ones(2, 2)}}, "param_groups": [{"lr": 0.1}]}
HINTS = ("mixer.heads=2", "image_size=32x48")


def read(content: object, key: str = "") -> torch.Tensor:
    return select_state_dict(content, key, Path("w.pt")).tensors["a.weight"]


@pytest.mark.parametrize("pair", [("model", "model_ema"), ("state_dict", "state_dict_ema"), ("module", "ema.module")])
def test_of_two_sets_none_is_taken_until_a_key_chooses(pair: tuple[str, str]) -> None:
    content = {pair[0]: ONE, pair[1]: TWO, "optimizer": OPTIMIZER, "epoch": 3}
    with raises("weights.ambiguous", pair[0], pair[1], "1 tensors", "--weights-key"):
        read(content)
    assert read(content, pair[0]).sum() == 4
    assert read(content, pair[1]).sum() == 0


def test_what_lies_beside_the_only_set_is_named() -> None:
    content = {"state_dict": ONE, "optimizer": OPTIMIZER, "epoch": 3, "arch": "vit_tiny_patch16_224"}
    found = select_state_dict(content, "", Path("w.pt"))
    assert found.tensors.keys() == ONE.keys()
    (line,) = found.messages
    assert all(word in line for word in ("optimizer", "epoch 3", "vit_tiny_patch16_224"))
    (line,) = select_state_dict(ONE | {"epoch": 3}, "", Path("w.pt")).messages
    assert "epoch 3" in line


def test_a_lone_tensor_beside_the_weights_is_not_taken_for_them() -> None:
    whole = {**ONE, "b.weight": torch.ones(2)}
    assert read({"model": whole, "class_weights": torch.ones(10)}).sum() == 4
    assert read(whole | {"_extra_state": {"scale": torch.ones(1)}}).sum() == 4


def test_a_teacher_is_taken_before_its_student_and_said_so() -> None:
    content = {"student": ONE, "teacher": TWO, "dino_loss": {"center": torch.ones(1, 2)}}
    found = select_state_dict(content, "", Path("w.pt"))
    assert found.tensors["a.weight"].sum() == 0
    assert any("student" in line and "teacher" in line for line in found.messages)
    assert read(content, "student").sum() == 4


def test_a_key_goes_down_levels_and_to_prefixes_of_names() -> None:
    names = {f"{part}.{name}": value for part, one in (("net", ONE), ("ema", TWO)) for name, value in one.items()}
    assert read({"checkpoint": {"state_dict": names}}, "checkpoint.state_dict.ema").sum() == 0
    assert read({"checkpoint": {"state_dict": names}}, "checkpoint.state_dict.net").sum() == 4


@pytest.mark.parametrize("key", ["model_ema2", "optimizer", "model.b", "epoch"])
def test_a_key_that_names_no_weights_is_refused_with_those_that_do(key: str) -> None:
    with raises("weights.unknown_key", key, "model_ema"):
        read({"model": ONE, "model_ema": TWO, "optimizer": OPTIMIZER, "epoch": 3}, key)


@pytest.mark.parametrize("content", [[1, 2], {}, {"epoch": 3}, {"optimizer": OPTIMIZER}, OPTIMIZER, {1: torch.ones(2)}])
def test_a_file_without_weights_is_refused(content: object) -> None:
    with raises("weights.not_state_dict", "w.pt"):
        read(content)


@pytest.mark.parametrize("suffix", [".pth", ".pth.tar", ".ckpt"])
def test_a_training_checkpoint_opens_as_its_weights(tmp_path: Path, suffix: str) -> None:
    weights = reference("timm_vit").weights
    plain = open_model(put(tmp_path / "plain", weights), *HINTS).loaded.model
    file = tmp_path / f"checkpoint{suffix}"
    args = argparse.Namespace(model="vit", lr=0.1)
    content = {"state_dict": weights, "optimizer": OPTIMIZER, "epoch": 3, "args": args, "metric": np.float64(0.5)}
    torch.save(content, file)
    with raises("weights.pickle_refused", file):
        open_model(file, *HINTS)
    found = open_model(file, *HINTS, options=ReadOptions(allow_pickle=True))
    assert any("optimizer" in line and "args" in line for line in found.messages)
    assert all(torch.equal(one, plain.state_dict()[name]) for name, one in found.loaded.model.state_dict().items())


def test_the_averaged_weights_are_read_by_their_key_from_pickles_and_safetensors(tmp_path: Path) -> None:
    weights = reference("timm_vit").weights
    averaged = {name: 2 * tensor for name, tensor in weights.items()}
    torch.save({"model": weights, "model_ema": averaged}, tmp_path / "w.pth")
    flat = {f"{part}.{name}": one for part, some in (("m", weights), ("e", averaged)) for name, one in some.items()}
    save_file(flat, tmp_path / "w.safetensors")
    for path, key in (("w.pth", "model_ema"), ("w.safetensors", "e")):
        settings, expected = {"mixer.heads": 2, "image_size": "32x48"}, averaged["norm.weight"]
        model = vitral.load(tmp_path / path, settings=settings, weights_key=key, allow_pickle=True).model
        assert torch.equal(model.state_dict()["norm.weight"], expected)
    with raises("weights.ambiguous", "model_ema"):
        vitral.load(tmp_path / "w.pth", allow_pickle=True)
    with raises("weights.unknown_key", "nothing"):
        vitral.load(tmp_path / "w.safetensors", weights_key="nothing")


def test_a_pickle_is_not_read_further_than_its_weights(tmp_path: Path) -> None:
    torch.save({"model": ONE, "hook": Path("x")}, tmp_path / "w.pt")
    with raises("weights.unsafe_pickle", "pathlib."):
        read_torch_pickle(tmp_path / "w.pt")


def test_the_keywords_of_load_are_the_options_of_reading() -> None:
    assert (
        set(get_type_hints(LoadOptions)) == set(ReadOptions.model_fields) == set(Recipe().weights_options.model_dump())
    )


@pytest.mark.parametrize("options", [{"arch": "vit_tiny_patch16_224"}, {"weights_key": "model"}])
def test_options_that_a_checkpoint_does_not_need_are_not_swallowed(tmp_path: Path, options: LoadOptions) -> None:
    vitral.save(vitral.create_model("Ti/16", image_size=32, depth=1, num_classes=2), tmp_path / "b")
    with raises("config.conflict", *options):
        vitral.load(tmp_path / "b", **options)
    torchvision = put(tmp_path / "t", reference("torchvision_vit").weights)
    with raises("config.unsupported" if "arch" in options else "weights.unknown_key"):
        vitral.load(torchvision, **options)
