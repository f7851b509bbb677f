"""preprocessor_config.json: as published files have it, and what is refused in it."""

from typing import Any

import pytest

from tests.errors import raises
from tests.weights.formats.huggingface.folders import sees
from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize, Preprocessing
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.processor import processor_fields, read_processor
from vitral.weights.formats.registry import FAMILIES

MEANS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SIDE = Size(224, 224)
HALVES = Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
PUBLISHED: dict[str, tuple[str, dict[str, Any], Preprocessing]] = {
    "google/vit-base-patch16-224": (
        "hf-vit",
        {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224},
        Preprocessing(normalize=HALVES),
    ),
    "facebook/vit-mae-base": (
        "hf-mae",
        {"do_normalize": True, "do_resize": True, "resample": 2, "size": 224, **MEANS},
        Preprocessing(normalize=IMAGENET),
    ),
    "facebook/dinov2-base": (
        "hf-dinov2",
        {
            "crop_size": {"height": 224, "width": 224},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_rescale": True,
            "image_processor_type": "BitImageProcessor",
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 256},
            **MEANS,
        },
        Preprocessing(crop=CenterCrop(fraction=0.875, filter="bicubic", rounding="down"), normalize=IMAGENET),
    ),
    "openai/clip-vit-base-patch32": (
        "hf-clip",
        {"crop_size": 224, "do_center_crop": True, "resample": 3, "size": 224, **MEANS},
        Preprocessing(crop=CenterCrop(fraction=1.0, filter="bicubic", rounding="down"), normalize=IMAGENET),
    ),
    "google/siglip-base-patch16-256": (
        "hf-siglip",
        {"resample": 3, "size": {"height": 256, "width": 256}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        Preprocessing(image_size=Size(256, 256), crop=Resize(filter="bicubic"), normalize=HALVES),
    ),
    "facebook/dinov3-vits16-pretrain-lvd1689m": (
        "hf-dinov3",
        {"crop_size": None, "do_center_crop": None, "resample": 2, "size": {"height": 224, "width": 224}, **MEANS},
        Preprocessing(normalize=IMAGENET),
    ),
}
GOOD: dict[str, Any] = {
    "size": {"shortest_edge": 256},
    "crop_size": 224,
    "do_center_crop": True,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_resize": True,
    **MEANS,
}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no resizing": ({"do_resize": False}, "weights.unsupported", "do_resize: "),
    "bytes as they are": ({"do_rescale": False}, "weights.unsupported", "do_rescale: "),
    "another factor": ({"rescale_factor": 1 / 127.5}, "weights.unsupported", "rescale_factor: "),
    "another filter": ({"resample": 1}, "weights.unsupported", "resample: "),
    "a filter that is a list": ({"resample": [2]}, "weights.unsupported", "resample: "),
    "no crop": ({"do_center_crop": False}, "weights.unsupported", "do_center_crop: "),
    "no size": ({"size": None}, "weights.bad_config", "size "),
    "the longest edge": ({"size": {"longest_edge": 256}}, "weights.bad_config", "size: "),
    "a size of text": ({"size": "large"}, "weights.bad_config", "size: "),
    "a part of a pixel": ({"size": {"shortest_edge": 2.5}}, "weights.bad_config", "size.shortest_edge: "),
    "a crop beyond the picture": ({"crop_size": 300}, "weights.unsupported", "crop_size: "),
    "a crop that is no square": ({"crop_size": {"height": 224, "width": 192}}, "weights.unsupported", "crop_size: "),
    "a crop of nothing": ({"crop_size": None}, "weights.bad_config", "crop_size "),
    "two means": ({"image_mean": [0.5, 0.5], "image_std": [0.5, 0.5]}, "weights.bad_config", "image_mean: "),
    "a deviation too few": ({"image_std": [0.5, 0.5]}, "weights.bad_config", "image_std: "),
    "a deviation of zero": ({"image_std": [0.5, 0.5, 0]}, "weights.bad_config", "image_std: "),
    "a mean of text": ({"image_mean": ["a"]}, "weights.bad_config", "image_mean: "),
    "another class": ({"image_processor_type": "LevitImageProcessor"}, "weights.unsupported", "image_processor_type: "),
    "padding": ({"do_pad": True, "pad_size": {"height": 256, "width": 256}}, "weights.unsupported", "do_pad: "),
    "a number for the shorter side": (
        {"size": 256, "default_to_square": False, "do_center_crop": False},
        "weights.unsupported",
        "do_center_crop: ",
    ),
    "a flag of text": ({"do_normalize": "yes"}, "weights.bad_config", "do_normalize: "),
}


def fields(data: dict[str, Any]) -> Fields:
    return Fields(data, "preprocessor_config.json", "get it again")


def custom(name: str) -> str:
    return next(family.processor for family in FAMILIES if family.name == name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_as_the_library_has_them(name: str) -> None:
    family, data, expected = PUBLISHED[name]
    found, assumed = read_processor(fields(data), 3, custom(family), SIDE)
    assert found == expected.with_decoding(jpeg_scale="full")  # the library decodes whole photos
    assert bool(assumed) is (family == "hf-dinov3")  # which does not round


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_exactly_is_refused_by_its_field(name: str) -> None:
    change, code, field = REFUSED[name]
    with raises(code, f"preprocessor_config.json: {field}"):
        read_processor(fields(GOOD | change), 3, custom("hf-dinov2"), SIDE)


def test_images_that_are_not_scaled_keep_parts_of_one() -> None:
    made, _ = read_processor(fields(GOOD | {"do_normalize": False}), 3, custom("hf-vit"), SIDE)
    assert made.normalize == Normalize(mean=(0.0,), std=(1.0,))


def test_whether_a_number_is_a_square_or_the_shorter_side_is_that_of_the_class_unless_the_file_says() -> None:
    for family, square in (("hf-vit", True), ("hf-clip", False)):
        for given in ({}, {"default_to_square": not square}):
            made, _ = read_processor(fields(GOOD | {"size": 256, **given}), 3, custom(family), SIDE)
            assert isinstance(made.crop, CenterCrop)
            assert made.crop.aspect == ("squash" if square is not bool(given) else "keep")


def test_the_shorter_side_is_met_whatever_the_fraction_rounds_to() -> None:
    for shortest in range(224, 640):
        made, _ = read_processor(fields(GOOD | {"size": {"shortest_edge": shortest}}), 3, custom("hf-dinov2"), SIDE)
        assert made.crop.plan(Size(1000, 1500), made.image_size).resize_to.height == shortest


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "crop", [Resize(), CenterCrop(rounding="down"), CenterCrop(aspect="squash", rounding="down")], ids=repr
)
def test_what_is_written_does_the_same_when_read(crop: Resize | CenterCrop, filter: str) -> None:
    for scaling in (CENTERED, IMAGENET):
        seen = crop.model_copy(update={"filter": filter})
        given = Preprocessing(image_size=Size(96, 96), crop=seen, normalize=scaling)
        made, assumed = read_processor(fields(processor_fields(given)), 3, custom("hf-vit"), SIDE)
        assert sees(made) == sees(given)
        assert not assumed


def test_a_rectangle_is_written_with_both_sides() -> None:
    given = Preprocessing(image_size=Size(64, 96))
    assert processor_fields(given)["size"] == {"height": 64, "width": 96}
    assert read_processor(fields(processor_fields(given)), 3, custom("hf-vit"), SIDE)[0].image_size == Size(64, 96)
