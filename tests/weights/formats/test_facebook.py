"""facebook's own files, and iBOT's. Some fixtures are timm's models under facebook's names: see their README.md."""

import argparse
import re
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.models.references import reference
from tests.weights.bundles import bundle_of
from tests.weights.formats.files import (
    TOLERANCE,
    differences,
    fixture,
    layout,
    put,
    relative_errors,
    vit,
    written_back,
)
from vitral.core.config import parse_settings
from vitral.models import Attention, Learned1d, LinearHead, MeanPool, NoHead, Rope2d, SwiGlu
from vitral.weights.formats.facebook import Backbone, Dino, Dinov2Facebook, Dinov3Facebook, Ibot, Mae, MocoV3
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
    assert "ignored head.last_layer.weight_g and 3 more: the head that only its training uses" in told
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


@pytest.mark.parametrize("kind", [Dino(), Dinov2Facebook(), Dinov3Facebook(), Ibot(), Mae(), MocoV3()])
def test_they_are_read_and_not_written(kind: Backbone) -> None:
    assert [words.partition(":")[0] for words in kind.unsupported(bundle_of())] == ["library"]


EXACT = 1e-6  # of the library's answer; facebook's code resizes positions in float32
REPOSITORY: dict[str, tuple[Backbone, tuple[str, ...], str]] = {
    "dino": (Dino(), ("mixer.heads=2",), "backbone."),
    "dinov2": (Dinov2Facebook(), ("mixer.heads=2",), ""),
    "dinov2_registers": (Dinov2Facebook(), ("mixer.heads=2",), ""),
    "dinov3": (Dinov3Facebook(), ("image_size=12",), ""),
    "dinov3_gated": (Dinov3Facebook(), ("image_size=12",), ""),
    "ibot": (Ibot(), ("mixer.heads=2",), "backbone."),
    "ibot_mean": (Ibot(), ("mixer.heads=2",), "backbone."),
    "mae": (Mae(), ("mixer.heads=2",), ""),
    "moco_v3": (MocoV3(), ("mixer.heads=4",), "module.base_encoder."),
}
ALTERED = re.compile(r"bias_mask$|attn\.qkv\.bias$|rope_embed|^head\.")  # what is no tensor of ours as it is


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REPOSITORY)
def test_a_model_answers_as_the_code_of_its_repository(tmp_path: Path, name: str) -> None:
    kind, settings, prefix = REPOSITORY[name]
    folder, found = layout(name, tmp_path / "a")
    loaded = load(folder, settings=parse_settings([*settings]))
    assert loaded.bundle.source.startswith(kind.title)
    assert max(relative_errors(load(folder, settings=parse_settings([*settings])).model, found.answers)) <= EXACT
    written = written_back(loaded, kind)
    own = {kind.short(name): tensor for name, tensor in found.weights.items() if name.startswith(prefix)}
    assert all(torch.equal(tensor, own[name]) for name, tensor in written.items() if not ALTERED.search(name))


def test_classifiers_of_mae_are_read(tmp_path: Path) -> None:
    for name in ("mae_finetuned", "mae_linear"):
        folder, found = layout(name, tmp_path / name)
        loaded = load(folder, settings=HEADS, format="mae")
        assert max(relative_errors(loaded.model, found.answers)) <= EXACT
        assert isinstance(vit(loaded).head, LinearHead)
    assert vit(load(tmp_path / "mae_finetuned", settings=HEADS, format="mae")).pool == MeanPool(norm="after")


def test_a_table_of_fixed_sines_tells_an_encoder_saved_alone_from_dino_s(tmp_path: Path) -> None:
    weights = reference("layouts/mae").weights
    encoder = {name: each for name, each in weights.items() if not name.startswith(("decoder_", "mask_token"))}
    opened = open_model(put(tmp_path / "mae", encoder), "mixer.heads=2")
    assert opened.loaded.bundle.source.startswith("facebook's MAE")
    base = {MocoV3().short(name): each for name, each in reference("layouts/moco_v3").weights.items()}
    base = {name: each for name, each in base.items() if not name.startswith(("head.", "module."))}
    folder = put(tmp_path / "moco", base)
    assert load(folder, settings={"mixer.heads": 4}).bundle.source.startswith("facebook's MoCo v3")
    learned = put(tmp_path / "other", base | {"pos_embed": base["pos_embed"] + 0.1})
    with raises("weights.ambiguous", "timm", "dino"):
        load(learned, settings={"mixer.heads": 4})


def test_the_small_model_of_moco_has_twelve_heads(tmp_path: Path) -> None:
    wide = {f"module.base_encoder.{name}": torch.zeros(shape) for name, shape in small_backbone(384).items()}
    opened = open_model(put(tmp_path / "a", wide))
    mixer = vit(opened.loaded).mixer
    assert isinstance(mixer, Attention)
    assert mixer.heads == 12
    assert "assumed: 12 heads, as in the published model of width 384" in opened.messages


def small_backbone(width: int) -> dict[str, tuple[int, ...]]:
    """The shapes of one layer in facebook's names."""
    return {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 5, width),
        "patch_embed.proj.weight": (width, 3, 2, 2),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "blocks.0.norm1.weight": (width,),
        "blocks.0.norm1.bias": (width,),
        "blocks.0.attn.qkv.weight": (3 * width, width),
        "blocks.0.attn.qkv.bias": (3 * width,),
        "blocks.0.attn.proj.weight": (width, width),
        "blocks.0.attn.proj.bias": (width,),
        "blocks.0.norm2.weight": (width,),
        "blocks.0.norm2.bias": (width,),
        "blocks.0.mlp.fc1.weight": (8, width),
        "blocks.0.mlp.fc1.bias": (8,),
        "blocks.0.mlp.fc2.weight": (width, 8),
        "blocks.0.mlp.fc2.bias": (width,),
    }


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mae", "ignored mask_token: replaces masked patches, in training only"),
        ("mae", "more: belongs to the decoder, which only pre-training"),
        ("moco_v3", "belongs to the momentum encoder; the base encoder is read"),
        ("moco_v3", "the head that only its training uses"),
        ("ibot", "ignored backbone.masked_embed: replaces masked patches, in training only"),
        ("ibot", "the head that only its training uses"),
        ("dinov3", "ignored local_cls_norm.bias and 1 more: normalizes small crops, in training only"),
        ("dinov3", "assumed: eps 1e-5 in the norms, whole images resized, ImageNet's mean"),
    ],
)
def test_what_is_left_out_or_assumed_of_a_repository_s_file_is_said(tmp_path: Path, name: str, line: str) -> None:
    lines = open_model(layout(name, tmp_path / "a")[0], *REPOSITORY[name][1]).messages
    assert any(line in each for each in lines), lines


def test_rotary_periods_of_dinov3_are_those_of_the_file(tmp_path: Path) -> None:
    rounded = vit(load(layout("dinov3", tmp_path / "a")[0], settings={"image_size": 12}))
    assert rounded.position == Rope2d(base=100.0, precision="bfloat16")
    assert vit(load(layout("dinov3_gated", tmp_path / "b")[0], settings={"image_size": 12})).position == Rope2d(base=20)
    weights = reference("layouts/dinov3").weights
    folder = put(tmp_path / "c", weights | {"rope_embed.periods": torch.tensor([2.0, 3.0, 4.0])})
    with raises("weights.unsupported", "rope_embed.periods"):
        load(folder, settings={"image_size": 12})
    with raises("weights.bad_setting", "rope_embed.periods", 12):
        load(layout("dinov3", tmp_path / "d")[0], settings={"mixer.heads": 4})


def test_untied_norms_of_dinov3_are_refused(tmp_path: Path) -> None:
    weights = reference("layouts/dinov3").weights | {"cls_norm.weight": torch.ones(24), "cls_norm.bias": torch.ones(24)}
    with raises("weights.unsupported", "cls_norm.weight"):
        load(put(tmp_path / "a", weights), settings={"image_size": 12})


def test_a_stem_of_convolutions_is_not_taken_for_patches(tmp_path: Path) -> None:
    weights = reference("layouts/moco_v3").weights
    prefix = "module.base_encoder.patch_embed.proj"
    stem = {f"{prefix}.0.weight": torch.zeros(1, 3, 3, 3), f"{prefix}.12.weight": torch.zeros(8, 1, 1, 1)}
    conv = {name: each for name, each in weights.items() if not name.startswith(prefix)} | stem
    with raises("weights.unsupported", "patch_embed.proj.0.weight"):
        load(put(tmp_path / "a", conv), settings={"mixer.heads": 4})
