"""Names of the paper, of its code and of timm, and the numbers that they stand for."""

import re

import pytest
import torch

from tests.errors import raises
from vitral.core.config import Size, parse_settings
from vitral.models import Attention, Hybrid, Model, Patches, Resnet, Vit, model_config
from vitral.models.registry import list_models
from vitral.weights.create import create_model

# google-research/vision_transformer with 1000 classes at 224 pixels.
GOOGLE = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "S/32": 22_878_952,
    "B/8": 86_576_872,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
}
BACKBONES = {
    "Ti/16": 5_524_416,
    "S/32": 22_493_952,
    "S/16": 21_665_664,
    "B/32": 87_455_232,
    "B/16": 85_798_656,
    "B/8": 85_807_872,
    "L/32": 305_510_400,
    "L/16": 303_301_632,
    "H/14": 630_764_800,
}


def parameters(name: str, *settings: str) -> int:
    return sum(
        weight.numel() for weight in model_config(name, settings=parse_settings([*settings])).build_empty().parameters()
    )


def vit(name: str, *settings: str) -> Vit:
    config = model_config(name, settings=parse_settings([*settings]))
    assert isinstance(config, Vit)
    return config


@pytest.mark.parametrize(("name", "count"), GOOGLE.items())
def test_a_model_has_as_many_parameters_as_googles(name: str, count: int) -> None:
    assert parameters(name) == count


def test_a_model_with_mean_pooling_and_no_class_token_has_as_many_parameters_as_googles() -> None:
    assert parameters("B/16", "tokens.cls=false", "pool=mean") == 86_566_120


@pytest.mark.parametrize(("name", "count"), BACKBONES.items())
def test_a_backbone_has_as_many_parameters_as_published(name: str, count: int) -> None:
    assert parameters(name, "head=none") == count


@pytest.mark.parametrize(
    ("scale", "layers", "width", "hidden", "heads"),
    [("B", 12, 768, 3072, 12), ("L", 24, 1024, 4096, 16), ("H", 32, 1280, 5120, 16)],
)
def test_the_sizes_are_those_of_table_1(scale: str, layers: int, width: int, hidden: int, heads: int) -> None:
    config = vit(f"{scale}/16")
    assert isinstance(config.mixer, Attention)
    assert (config.depth, config.width, config.mixer.heads) == (layers, width, heads)
    assert config.mlp.hidden(config.width) == hidden
    weights = dict(config.build_empty().named_parameters())
    assert weights[f"blocks.{layers - 1}.mlp.expand.weight"].shape == (hidden, width)
    assert f"blocks.{layers}.mlp.expand.weight" not in weights


@pytest.mark.parametrize(
    ("name", "settings", "millions"), [("B/16", ["head=none"], 86), ("L/32", [], 307), ("H/14", [], 632)]
)
def test_table_1_counts_millions_of_parameters(name: str, settings: list[str], millions: int) -> None:
    """The table names no patch and no head; these are the models that it fits."""
    assert round(parameters(name, *settings) / 1e6) == millions


def test_the_default_config_is_vit_b_16() -> None:
    assert model_config("B/16") == Vit()


@pytest.mark.parametrize(
    "names",
    [
        ("B/16", "ViT-B/16", "vit_base_patch16", "vit_base_patch16_224"),
        ("L/32", "ViT-L/32", "vit_large_patch32", "vit_large_patch32_224"),
        ("Ti/16", "ViT-Ti/16", "vit_tiny_patch16_224"),
        ("S/8", "ViT-S/8", "vit_small_patch8_224"),
        ("H/14", "ViT-H/14", "vit_huge_patch14_224"),
        ("g/14", "ViT-g/14", "vit_giant_patch14_224"),
        ("G/14", "ViT-G/14", "vit_gigantic_patch14_224"),
        ("R50+B/16", "R50+ViT-B/16"),
        ("R+Ti/16", "R+ViT-Ti/16"),
        ("R152x4", "BiT-R152x4"),
    ],
    ids=lambda names: names[0],
)
def test_every_spelling_is_the_same_model(names: tuple[str, ...]) -> None:
    assert len({model_config(name).to_json() for name in names}) == 1


def test_different_names_are_different_models() -> None:
    named = [name for name in list_models() if not name.startswith("vit_")]
    assert len({model_config(name).to_json() for name in named}) == len(named) == len(set(named))


@pytest.mark.parametrize("name", list_models())
def test_every_name_that_is_suggested_is_known(name: str) -> None:
    assert isinstance(model_config(name), Resnet if re.fullmatch(r"R\d+x\d", name) else Vit)


def test_the_case_of_a_letter_matters() -> None:
    """Figure 4's b is B with all widths halved; g and G are two sizes."""
    small, base = vit("b/16"), vit("B/16")
    assert (2 * small.width, small.depth) == (base.width, base.depth)
    assert 2 * small.mlp.hidden(small.width) == base.mlp.hidden(base.width)
    assert vit("g/14").mlp.hidden(1408) == 6144
    assert vit("G/14").mlp.hidden(1664) == 8192


def test_a_name_carries_patch_and_image() -> None:
    config = vit("vit_base_patch32_384")
    assert config.image_size == Size(384, 384)
    assert config.stem == Patches(patch=Size(32, 32))
    assert vit("B/7").stem == Patches(patch=Size(7, 7))
    with raises("config.indivisible", "image", "24x24", "16x16"):
        model_config("vit_base_patch16_24")


@pytest.mark.parametrize(
    ("name", "layers", "pixels"),
    [
        ("R26+S/32", (2, 2, 2, 2), 32),
        ("R50+L/32", (3, 4, 6, 3), 32),
        ("R50+B/16", (3, 4, 9), 16),
        ("R101+L/16", (3, 4, 26), 16),
        ("R+Ti/16", (), 32),  # the paper's name says 16, its code says 32
    ],
)
def test_a_hybrid_folds_its_fourth_stage_for_16_pixels_a_token(name: str, layers: tuple[int, ...], pixels: int) -> None:
    config = vit(name)
    assert isinstance(config.stem, Hybrid)
    assert config.stem.layers == layers
    assert config.stem.grid(Size(224, 224)) == (224 // pixels, 224 // pixels)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("B16", "B/16"),
        ("ViT_B/16", "B/16"),
        ("R50-B/16", "R50+B/16"),
        ("R50+ViT-B/17", "R50+B/16"),
        ("vit-b/16", "B/16"),
        ("ResNet50", "R50x1"),
        ("R51x1", "R50x1"),
        ("vit_bass_patch16_224", "vit_base_patch16_224"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with raises("config.unknown_name", repr(name)) as caught:
        model_config(name)
    assert caught.value.where == "model"
    first, *_ = caught.value.hint.split(", ")
    assert first.split()[-1] == near


def test_a_name_that_is_near_nothing_is_answered_with_examples() -> None:
    with raises("config.unknown_name", "model", "'xyzzy'", "B/16", "R50+B/16", "R50x1"):
        model_config("xyzzy")


@pytest.mark.parametrize("name", ["B/0", "B/", "", "R50", "R50x0", "R50+R50", "vit__patch16_224", "B/16 ", "X/16"])
def test_a_name_with_a_hole_in_it_is_refused(name: str) -> None:
    with raises("config.unknown_name", "model", repr(name)):
        model_config(name)


def test_settings_apply_to_a_name() -> None:
    config = vit("S/16", "head.num_classes=10", "image_size=96", "position=rope2d", "mlp.activation=gelu")
    assert (config.image_size, config.position.kind) == (Size(96, 96), "rope2d")
    assert config.head.model_dump() == {"kind": "linear", "num_classes": 10, "bias": 0.0, "temperature": 1.0}
    assert config.width == 384
    with raises("config.unknown_field", "head.clases"):
        model_config("S/16", settings={"head.clases": 10})


def test_settings_apply_to_a_config_as_to_a_name() -> None:
    assert model_config(vit("S/16"), depth=3) == model_config("S/16", depth=3)
    assert model_config(Vit()) == Vit()


def test_a_model_is_built_from_a_name_or_a_config() -> None:
    settings = ("depth=1", "width=24", "mixer.heads=3", "head.num_classes=5", "image_size=32")
    models: list[Model] = [
        create_model("S/16", settings=parse_settings([*settings])),
        create_model(vit("S/16", *settings)),
        create_model(vit("S/16"), settings=parse_settings([*settings])),
    ]
    for model in models:
        assert isinstance(model, Model)
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    assert isinstance(create_model("R26x1", settings={"layers": [1], "root": 32}), Model)
