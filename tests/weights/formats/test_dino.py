"""facebook's DINO and DINOv2.  The fixtures are timm's models under facebook's names: see their README.md."""

import argparse
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.models.references import reference
from tests.weights.bundles import bundle_of
from tests.weights.formats.files import TOLERANCE, differences, fixture, put, vit
from vitral.models import Learned1d, NoHead, SwiGlu
from vitral.weights.formats.dino import Dino, Dinov2Facebook
from vitral.weights.load import load, open_model

HEADS = {"mixer.heads": 2}


@pytest.mark.parametrize("name", ["dino", "dinov2", "dinov2_registers"])
def test_a_backbone_gives_the_same_tokens(tmp_path: Path, name: str) -> None:
    folder, found = fixture(name, tmp_path / "a")
    sizes = ("", "_large") if name == "dinov2_registers" else ("",)  # the others stretch positions in another way
    model, bundle = load(folder, settings=HEADS)
    assert max(differences(model, found.answers, sizes)) <= TOLERANCE
    assert isinstance(model.config.head, NoHead)
    assert bundle.task == "features"
    assert bundle.preprocessing.normalize.mean == (0.485, 0.456, 0.406)


def bare() -> dict[str, torch.Tensor]:
    """A backbone as DINO publishes it, without anything around it."""
    weights = reference("dino").weights
    return {name.removeprefix("backbone."): each for name, each in weights.items() if name.startswith("backbone.")}


def test_what_is_left_out_is_told_with_the_reason(tmp_path: Path) -> None:
    told = open_model(fixture("dino", tmp_path / "a")[0], "mixer.heads=2").messages
    assert "ignored head.last_layer.weight_g and 3 more: the head that only DINO's training uses" in told
    told = open_model(fixture("dinov2", tmp_path / "b")[0], "mixer.heads=2").messages
    assert "ignored mask_token: replaces masked patches, in training only" in told


def test_a_bare_backbone_may_be_timm_s_too_so_it_is_asked(tmp_path: Path) -> None:
    folder = put(tmp_path / "a", bare())
    with raises("weights.ambiguous", "timm", "dino", f"vitral convert {folder}", "--format timm"):
        load(folder, settings=HEADS)
    answers = reference("dino").answers
    positions = {"timm": Learned1d(resampling="bicubic_antialias"), "dino": Learned1d(resampling="bicubic_offset")}
    for name, position in positions.items():
        loaded = load(folder, settings=HEADS, format=name)
        assert max(differences(loaded.model, answers)) <= TOLERANCE
        assert vit(loaded).position == position


def test_a_head_or_the_notes_of_timm_settle_it(tmp_path: Path) -> None:
    headed = bare() | {"head.weight": torch.zeros(3, 40), "head.bias": torch.zeros(3)}
    assert load(put(tmp_path / "a", headed), settings=HEADS).bundle.source.startswith("timm")
    noted = put(tmp_path / "b", bare(), {"architecture": "vit_small_patch16_224_dino"})
    assert load(noted, settings=HEADS).bundle.source.startswith("timm")
    scaled = bare() | {f"blocks.{layer}.ls{which}.gamma": torch.ones(40) for layer in range(2) for which in (1, 2)}
    assert load(put(tmp_path / "c", scaled), settings=HEADS).bundle.source.startswith(
        "timm"
    )  # DINO has no such factors


def checkpoint(path: Path, **more: object) -> Path:
    """What DINO's training saves: a student that is of no use here, and its teacher."""
    teacher = reference("dino").weights
    student = {f"module.{name}": torch.zeros_like(tensor) for name, tensor in teacher.items()}
    torch.save({"student": student, "teacher": teacher, "epoch": 3} | more, path)
    return path


def test_a_checkpoint_of_training_gives_its_teacher(tmp_path: Path) -> None:
    model = load(checkpoint(tmp_path / "checkpoint.pth"), settings=HEADS, allow_pickle=True).model
    assert max(differences(model, reference("dino").answers)) <= TOLERANCE


def test_the_arguments_of_the_program_that_wrote_a_checkpoint_do_no_harm(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoint.pth", args=argparse.Namespace(arch="vit_small"))
    model = load(path, settings=HEADS, allow_pickle=True).model
    assert max(differences(model, reference("dino").answers)) <= TOLERANCE


def test_the_student_of_a_run_over_several_processes_is_read(tmp_path: Path) -> None:
    student = {f"module.{name}": tensor for name, tensor in reference("dino").weights.items()}
    model = load(put(tmp_path / "a", student), settings=HEADS).model
    assert max(differences(model, reference("dino").answers)) <= TOLERANCE


def test_parts_of_dinov2_are_recognized(tmp_path: Path) -> None:
    plain = vit(load(fixture("dinov2", tmp_path / "a")[0], settings=HEADS))
    giant = vit(load(fixture("dinov2_registers", tmp_path / "b")[0], settings=HEADS))
    assert plain.position == Learned1d(resampling="bicubic_offset")
    assert giant.position == Learned1d(resampling="bicubic_antialias")
    assert (plain.tokens.registers, giant.tokens.registers) == (0, 3)
    assert isinstance(giant.mlp, SwiGlu)


@pytest.mark.parametrize("name", ["blocks.1.mlp.w12.bias", "blocks.0.ls2.gamma", "norm.bias"])
def test_a_tensor_that_is_missing_or_of_another_shape_is_named_as_in_the_file(tmp_path: Path, name: str) -> None:
    weights = reference("dinov2_registers").weights
    odd = weights | {name: weights[name][:-1]}
    with raises("weights.shape_mismatch", name):
        load(put(tmp_path / "a", odd), settings=HEADS)
    del weights[name]
    with raises("weights.missing_tensor", name):
        load(put(tmp_path / "b", weights), settings=HEADS)


@pytest.mark.parametrize("kind", [Dino(), Dinov2Facebook()])
def test_they_are_read_and_not_written(kind: Dino) -> None:
    assert [words.partition(":")[0] for words in kind.unsupported(bundle_of())] == ["library"]
