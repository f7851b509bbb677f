"""The config.json that timm writes beside the weights."""

from pathlib import Path

import pytest

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import put
from vitral.data.transforms.crop import CenterCrop
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
    crop = parse_crop({"crop_mode": "squash", "crop_pct": 0.95, "interpolation": "bicubic"})
    assert crop == CenterCrop(fraction=0.95, filter="bicubic", aspect="squash")
