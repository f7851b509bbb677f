"""The config.json that timm writes beside the weights."""

from pathlib import Path

import pytest

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import put
from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.timm.hub import input_size, parse_config, parse_crop
from vitral.weights.load import load


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        ({"interpolation": "lanczos"}, "weights.unsupported", ("lanczos", "bilinear")),
        ({"crop_mode": "border"}, "weights.unsupported", ("border", "squash")),
        ({"mean": [0.5, 0.5], "std": [0.5, 0.5]}, "weights.bad_config", (2, 3)),
    ],
)
def test_a_way_of_seeing_that_is_unknown_here_is_refused(
    tmp_path: Path, change: dict[str, object], code: str, values: tuple[object, ...]
) -> None:
    found = reference("timm_clip")
    found.config["pretrained_cfg"] |= change
    folder = put(tmp_path / "a", found.weights, found.config)
    with raises(code, folder / "config.json", "pretrained_cfg", *values):
        load(folder)


@pytest.mark.parametrize(
    ("config", "value"),
    [
        ({"pretrained_cfg": {"input_size": "x"}}, "config.json, pretrained_cfg.input_size"),
        ({"model_args": 3}, "model_args"),
    ],
)
def test_what_is_wrong_in_the_notes_is_told_as_theirs(tmp_path: Path, config: dict[str, object], value: str) -> None:
    ckpt = Checkpoint(tmp_path / "model.safetensors", {}, {"architecture": "vit_tiny_patch16_224", **config}, {})
    with raises("weights.bad_config", tmp_path, value):
        input_size(parse_config(ckpt).images, ckpt)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("num_heads", -3, "weights.bad_config"),
        ("qkv_bias", "yes", "weights.bad_config"),
        ("attn_layer", "diff", "weights.unsupported"),
        ("no_such_argument", 1, "weights.unsupported"),
    ],
)
def test_an_argument_that_is_wrong_or_unknown_is_named(tmp_path: Path, name: str, value: object, code: str) -> None:
    found = reference("timm_clip")
    found.config["model_args"][name] = value
    with raises(code, f"config.json, model_args.{name}"):
        load(put(tmp_path / "a", found.weights, found.config))


def test_a_squashed_image_may_be_cropped() -> None:
    crop = parse_crop({"crop_mode": "squash", "crop_pct": 0.95, "interpolation": "bicubic"}, Size(224, 224))
    assert crop == CenterCrop(fraction=0.95, filter="bicubic", aspect="squash")


def test_the_center_of_an_image_that_is_not_square_is_bilinear_as_in_timm(tmp_path: Path) -> None:
    """`ResizeKeepRatio(scale_size)` of timm 1.0.30 has its own default of interpolation."""
    given = {"crop_pct": 0.9, "interpolation": "bicubic"}
    assert parse_crop(given, Size(32, 48)).filter == "bilinear"
    assert parse_crop(given, Size(32, 32)).filter == "bicubic"
    found = reference("timm_clip")
    bundle = load(put(tmp_path / "a", found.weights, found.config)).bundle  # of 32x48
    assert bundle.preprocessing.crop == CenterCrop(fraction=1.0, filter="bilinear")
    assert any("rounded" in line for line in bundle.assumptions)


def test_fields_that_pretrained_cfg_omits_are_those_of_timm_not_of_the_name(tmp_path: Path) -> None:
    found = reference("timm_clip")
    for name in ("mean", "std", "crop_pct", "interpolation"):
        found.config["pretrained_cfg"].pop(name, None)
    bundle = load(put(tmp_path / "a", found.weights, found.config)).bundle
    assert bundle.preprocessing.normalize == IMAGENET
    assert bundle.preprocessing.crop == CenterCrop(fraction=0.875, filter="bilinear")  # for it is not square
    assert any("mean, std, crop_pct, interpolation" in line for line in bundle.assumptions)
