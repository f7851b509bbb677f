"""An explanation that nobody computed: plausible numbers of any size, for pages and figures to be tried on.

L layers, H heads, T tokens, N cells, K classes, R x S patches.
"""

from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Size
from vitral.data.decoding.pixels import Pixels
from vitral.explanation.explanation import (
    Array,
    Curve,
    Explanation,
    Faithfulness,
    LayerView,
    MapKind,
    ModelView,
    Photo,
    Step,
)
from vitral.models import Attention, LinearHead, Patches, Resnet, Tokens, Vit
from vitral.models.base import Grid, Layout

SMALL = Grid(6, 8)
CLASSES = ("ants", "bees", "wasps", "moths", "flies", "beetles", "spiders")
KINDS: tuple[MapKind, ...] = get_args(MapKind)


def stand_in(
    grid: Grid = SMALL,
    layers: int = 3,
    heads: int = 2,
    registers: int = 0,
    classes: tuple[str, ...] = CLASSES,
    name: str = "bee.jpg",
    seed: int = 0,
    picture: Pixels | None = None,
) -> Explanation:
    """A Vision Transformer that looks at a bright spot."""
    rng = np.random.default_rng(seed)
    layout = Layout(1, registers, grid)
    config = Vit(
        image_size=Size(16 * grid.rows, 16 * grid.columns),
        width=12 * heads,
        depth=layers,
        stem=Patches(patch=Size(16, 16)),
        tokens=Tokens(registers=registers),
        mixer=Attention(heads=heads),
        head=LinearHead(num_classes=max(1, len(classes))),
    )
    spot = bump(grid, 0.45, 0.55, 0.2)
    answers = [answer(rng, len(classes), layer / layers) for layer in range(1, layers + 1)]
    views = tuple(
        LayerView(layer + 1, attend(rng, layout, heads, layer / max(1, layers - 1), spot),
                  rng.uniform(10, 30 + 60 * layer / layers, heads).astype(np.float32), answers[layer])
        for layer in range(layers)
    )  # fmt: skip
    tokens = rng.normal(size=(grid.cells(), 16)) + 8 * spot.reshape(-1, 1) * rng.normal(size=16)
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    colors = np.stack([spot, bump(grid, 0.2, 0.2, 0.5), bump(grid, 0.9, 0.7, 0.5)], axis=-1)
    told = bool(classes)
    return Explanation(
        model_name="B/16 on insects",
        config=config,
        photo=photo(config.image_size, name, picture),
        classes=classes,
        probabilities=answers[-1],
        target=classes[int(answers[-1].argmax())] if classes else "",
        layout=layout,
        cells=grid,
        layers=views,
        maps={kind: (spot + noise(rng, grid, kind)).astype(np.float32) for kind in KINDS},
        feature_colors=colors.astype(np.float32),
        similarity=(unit @ unit.T).astype(np.float32),
        faithfulness=judged(rng) if told else Faithfulness(),
        steps=steps(rng, layout),
        model=model_view(rng, grid, layers, heads),
        unavailable=("This is a stand-in: it computes nothing.",),
    )


def stand_in_resnet() -> Explanation:
    """A ResNet: no layers, no filters, no positions; occlusion alone."""
    grid = Grid(4, 4)
    config = Resnet(image_size=Size(64, 64), layers=(1, 1), root=32, head=LinearHead(num_classes=len(CLASSES)))
    none = np.zeros((0, 0, 0, 0), np.float32)
    whole = stand_in(grid=grid)
    return replace(
        whole,
        model_name="R50",
        config=config,
        layout=Layout(0, 0, grid),
        layers=(),
        maps={"occlusion": whole.maps["occlusion"]},
        faithfulness=Faithfulness({"occlusion": whole.faithfulness.curves["occlusion"]}, whole.faithfulness.random),
        model=ModelView(none, none.ravel(), none, none.reshape(0, 0), 0),
        unavailable=("A ResNet has no attention: no layers and heads, no rollout, no relevance.",),
    )


def bump(grid: Grid, down: float, right: float, width: float) -> NDArray[np.float64]:
    """A round hill over the grid, 1 at its top."""
    rows = (np.arange(grid.rows)[:, None] + 0.5) / grid.rows - down
    columns = (np.arange(grid.columns) + 0.5) / grid.columns - right
    return np.exp(-(rows**2 + columns**2) / (2 * width**2))  # (R, S)


def noise(rng: np.random.Generator, grid: Grid, kind: MapKind) -> NDArray[np.float64]:
    """Of both signs where a map may have both."""
    found = rng.normal(scale=0.12, size=grid)
    return found if kind == "occlusion" else np.abs(found)


def answer(rng: np.random.Generator, classes: int, sureness: float) -> Array:
    logits = rng.normal(size=classes) + 5 * sureness**2 * (np.arange(classes) == 1)
    return (np.exp(logits) / np.exp(logits).sum()).astype(np.float32)  # (K,)


def attend(rng: np.random.Generator, layout: Layout, heads: int, depth: float, spot: NDArray[np.float64]) -> Array:
    """Attention (H, T, T) of heads that look near at first and at the spot later."""
    prefix, grid = layout.prefix(), layout.grid
    rows, columns = (each.ravel() for each in np.indices(grid))
    apart = (rows[:, None] - rows) ** 2 + (columns[:, None] - columns) ** 2  # (N, N)
    logits = rng.normal(scale=0.7, size=(heads, layout.length(), layout.length()))
    reach = 1 + 40 * rng.uniform(0, 1, heads) ** 2 + 20 * depth
    logits[:, prefix:, prefix:] -= (1 - 0.6 * depth) * apart / reach[:, None, None]
    logits[:, :, prefix:] += 4 * depth * spot.ravel()
    weights = np.exp(logits)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def judged(rng: np.random.Generator) -> Faithfulness:
    shares = np.linspace(0, 1, 11, dtype=np.float32)

    def curve(speed: float) -> Curve:
        wobble = 0.03 * rng.normal(size=(2, 11)).astype(np.float32) * shares * (1 - shares)
        fall = 0.93 * (1 - shares) ** speed + 0.04
        rise = 0.93 * (1 - (1 - shares) ** speed) + 0.04
        return Curve(shares, (fall + wobble[0]).astype(np.float32), (rise + wobble[1]).astype(np.float32))

    curves = {kind: curve(speed) for kind, speed in zip(KINDS, (2.5, 4.0, 1.1, 3.0), strict=True)}
    return Faithfulness(curves, tuple(curve(float(rng.uniform(0.9, 1.2))) for _ in range(8)))


def model_view(rng: np.random.Generator, grid: Grid, layers: int, heads: int) -> ModelView:
    count, side = 28, 16
    waves = np.indices((side, side)) / side
    turns = [np.pi * (waves[0] * (number % 5) + waves[1] * (number // 5)) for number in range(count)]
    filters = np.stack([np.cos(turn)[..., None] * rng.normal(size=3) for turn in turns])
    shares = 0.5 ** np.arange(1, count + 1)
    rows, columns = np.indices(grid)
    near = np.exp(-np.abs(rows[..., None, None] - rows) / 2) + np.exp(-np.abs(columns[..., None, None] - columns) / 2)
    distances = rng.uniform(10, 20 + 70 * np.linspace(0.2, 1, layers)[:, None], (layers, heads))
    each = [array.astype(np.float32) for array in (filters, shares, (near - 0.6) / 1.4, distances)]
    return ModelView(each[0], each[1], each[2], each[3], 32)


def steps(rng: np.random.Generator, layout: Layout) -> tuple[Step, ...]:
    tokens = layout.length()
    cut = rng.integers(0, 256, (20, 20, 3)).astype(np.uint8)
    return (
        Step("The picture is cut into patches", "x -> x_p", f"{layout.grid} squares, none overlaps.",
              f"{layout.grid.cells()} x 768", (("brightness of the first", 0.4213), ("of the last", -0.2)), (cut, cut)),
        Step("Each patch becomes a token", "z_0 = [x_class; x_1 E; ...; x_N E] + E_pos", "One matrix for all, "
              "and to each the vector of its place is added.", f"{tokens} x 768", (("length of the first", 12.3),)),
        Step("Layer 1: tokens look at each other", "z'_l = MSA(LN(z_l-1)) + z_l-1", "Each asks and each answers.",
              f"{tokens} x 768", (), (cut,)),
        Step("The answer", "y = LN(z_L^0)", "The class token is read.", "7", (("highest logit", 8.25),)),
    )  # fmt: skip


def photo(size: Size, name: str, picture: Pixels | None) -> Photo:
    """A picture half as wide again as what is seen of it, in the middle."""
    if picture is None:
        rows, columns = np.indices((size.height * 2, size.width * 3))
        spot = np.exp(-(((rows / size.height / 2 - 0.45) ** 2) + (columns / size.width / 3 - 0.52) ** 2) / 0.02)
        channels = [240 * spot, 60 + 120 * rows / rows.max(), 40 + 140 * columns / columns.max()]
        picture = np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)
    height, width = picture.shape[:2]
    scale = min(height / size.height, width / size.width)
    part = Size(round(size.height * scale), round(size.width * scale))
    top, left = (height - part.height) // 2, (width - part.width) // 2
    seen = picture[top : top + part.height, left : left + part.width]
    down, right = (np.arange(side) * whole // side for side, whole in zip(size, part, strict=True))
    return Photo(
        name, picture, seen[down][:, right], top / height, left / width, part.height / height, part.width / width
    )
