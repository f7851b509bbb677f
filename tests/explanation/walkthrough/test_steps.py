"""The walk-through tells real shapes and real numbers, for every model."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.variants import VARIANTS, VITS, small
from vitral.core.config import Size
from vitral.explanation.explanation import Photo, Step
from vitral.explanation.walkthrough.equations import equations
from vitral.explanation.walkthrough.steps import walkthrough_steps
from vitral.models import Learned1d, Model, NoHead, Palette, Patches, Resnet, Vit, attention_maps
from vitral.models.attention import BaseAttention

NAMES = ("ants", "bees", "wasps", "moths")


def photo_of(config: Vit | Resnet, size: Size) -> tuple[Photo, Tensor]:
    seen = np.random.default_rng(0).integers(0, 256, (*size, config.channels)).astype(np.uint8)
    image = torch.from_numpy(seen).permute(2, 0, 1)[None].float() / 127.5 - 1  # (1, C, H, W)
    return Photo("x.png", np.zeros((8, 8, 3), np.uint8), seen, 0.0, 0.0, 1.0, 1.0), image


def walked(config: Vit | Resnet, size: Size | None = None, names: tuple[str, ...] = NAMES) -> tuple[Step, ...]:
    photo, image = photo_of(config, size or config.image_size)
    return walkthrough_steps(varied(config), image, photo, () if isinstance(config.head, NoHead) else names)


def varied(config: Vit | Resnet) -> Model:
    """A model whose head, zero in a fresh model, says something."""
    torch.manual_seed(0)
    model = config.build().eval()
    for weight in model.head.parameters():
        torch.nn.init.normal_(weight)
    return model


def by_title(found: tuple[Step, ...], words: str) -> Step:
    return next(stage for stage in found if words in stage.title)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_model_is_told_from_pixels_to_answer(name: str) -> None:
    config = VARIANTS[name]
    found = walked(config)
    height, width = config.image_size
    if isinstance(config, Vit) and isinstance(config.stem, Patches):
        height, width = config.stem.covered(config.image_size)
    assert found[0].shape == f"{config.channels} x {height} x {width}"
    ends = "probabilities" if not isinstance(config.head, NoHead) else "Pooling"
    assert ends in found[-1].title
    for stage in found:
        assert stage.title
        assert stage.text.endswith(".")
        assert all(np.isfinite(number) for _, number in stage.numbers)
        assert all(picture.ndim == 3 and picture.dtype == np.uint8 for picture in stage.images)
        assert not stage.equation or any(stage.equation in line for line in (*equations(config), "p = softmax(logits)"))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VITS)
def test_shapes_are_those_of_the_tensors(name: str) -> None:
    config = VITS[name]
    found = walked(config)
    grid, layout = config.stem.grid(config.image_size), config.layout(config.image_size)
    inside = dict(config.build_empty().named_parameters())
    project = inside.get("stem.project.weight")
    numbers = config.width if project is None else project[0].numel()
    if isinstance(config.stem, Palette):
        assert by_title(found, "colors of a palette").shape == str(grid.cells())
    else:
        assert by_title(found, "cut into patches").shape == f"{grid.cells()} x {numbers}"
    sequence = by_title(found, "sequence of tokens")
    assert sequence.shape == f"{layout.length()} x {config.width}"
    assert ("class token, from which" in sequence.text) == config.tokens.cls
    assert ("registers" in sequence.text) == (config.tokens.registers > 0)
    assert by_title(found, "Pooling").shape == str(config.pool.out_width(config.width))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [name for name, config in VITS.items() if isinstance(config.mixer, BaseAttention)])
def test_the_weights_that_are_told_are_the_first_layers(name: str) -> None:
    config = VITS[name]
    photo, image = photo_of(config, config.image_size)
    model = varied(config)
    looking = by_title(walkthrough_steps(model, image, photo, ()), "self-attention")
    mean = attention_maps(model, image)[0][0].mean(dim=0)  # (L, L)
    prefix, grid = config.layout(config.image_size).prefix(), config.stem.grid(config.image_size)
    told = dict(looking.numbers)
    first, second = re.findall(r"row (\d+), column (\d+)", looking.text)[0]
    row = prefix + (int(first) - 1) * grid.columns + int(second) - 1
    assert told["of itself"] == pytest.approx(mean[row, row].item(), rel=1e-4)
    most = int(mean[row, prefix:].argmax())
    place = f"row {most // grid.columns + 1}, column {most % grid.columns + 1}"
    assert told[f"weight of {place}"] == pytest.approx(mean[row, prefix + most].item(), rel=1e-4)
    assert f"attends most to {place}" in looking.text
    if config.tokens.cls:
        assert told["of the class token"] == pytest.approx(mean[row, 0].item(), rel=1e-4)


def test_probabilities_are_the_models_best_first() -> None:
    config = small()
    photo, image = photo_of(config, config.image_size)
    model = varied(config)
    *_, scores, chances = walkthrough_steps(model, image, photo, NAMES)
    with torch.no_grad():
        logits = model(image)[0]  # (4,)
    assert dict(scores.numbers) == pytest.approx(dict(zip(NAMES, logits.tolist(), strict=True)), rel=1e-4)
    assert dict(chances.numbers) == pytest.approx(dict(zip(NAMES, logits.softmax(0).tolist(), strict=True)), rel=1e-4)
    values = [value for _, value in chances.numbers]
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1)


def test_what_positions_add_is_told_where_they_are_added() -> None:
    model = small(position=Learned1d()).build().eval()
    photo, image = photo_of(model.config, model.config.image_size)
    told = dict(by_title(walkthrough_steps(model, image, photo, NAMES), "sequence of tokens").numbers)
    rows = model.state_dict()["position.table"][0, 1:]  # (N, D), after the class token's
    assert told["mean norm of the position embedding"] == pytest.approx(rows.norm(dim=1).mean().item(), rel=1e-4)
    assert not any(
        "position" in name for name, _ in by_title(walked(VITS["position-rope2d"]), "sequence of tokens").numbers
    )


def test_an_image_of_another_size_has_its_own_numbers() -> None:
    found = walked(small(), Size(64, 48))
    assert by_title(found, "cut into patches").shape == "48 x 192"
    assert "x_48 E" in by_title(found, "sequence of tokens").equation
    assert "49 x 49 weights" in by_title(found, "self-attention").text


def test_many_layers_are_told_in_one_step() -> None:
    found = walked(small(depth=6))
    later = by_title(found, "Layers 2 to 6")
    assert [name for name, _ in later.numbers] == [f"layer {number}" for number in range(1, 7)]
    assert len([stage for stage in found if "ayer" in stage.title]) == 3
    assert not any("Layer 2" in stage.title or "Layers" in stage.title for stage in walked(small(depth=1)))


def test_a_model_that_names_no_classes_ends_with_its_vector() -> None:
    for found in (walked(VITS["head-none"]), walked(small(), names=())):
        assert "Pooling" in found[-1].title
        assert "no classes" in found[-1].text


def test_a_hybrid_and_a_residual_network_tell_of_their_maps() -> None:
    hybrid = by_title(walked(VITS["stem-hybrid"]), "Convolutions")
    assert hybrid.shape == "256 x 4 x 6"
    found = walked(VARIANTS["resnet"])
    assert [stage.shape for stage in found] == ["3 x 32 x 48", "256 x 4 x 6", "256", "4", "4"]
    assert len(found[1].images) == 3
