"""What the page says of its numbers, in sentences.  R x S patches, K classes."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup, escape

from vitral.data.doctor.finding import plural
from vitral.explanation.explanation import Array, Curve, Explanation, HeatMap, LayerView, MapKind, Photo
from vitral.explanation.faithfulness import Verdict
from vitral.html.page import printable
from vitral.models.base import Grid, Layout
from vitral.models.resnet import Resnet

NEAR = 0.1  # colors that differ by less are alike to the eye


def percent(share: float) -> str:
    """A share as people say it; what is small but there is not called nothing."""
    return f"{100 * share:.1f} %" if share == 0 or share >= 0.0005 else "< 0.1 %"


def series(items: Sequence[str]) -> str:
    return ", ".join(items)


def place(cell: int, grid: Grid) -> str:
    """Where a cell is, counted from 1 at the top left."""
    return f"row {cell // grid.columns + 1}, column {cell % grid.columns + 1}"


def model_told(explanation: Explanation) -> str:
    """The way of an image through the model, in a line."""
    config, layout = explanation.config, explanation.layout
    if isinstance(config, Resnet):
        units = plural(sum(config.layers), "residual unit")
        return f"a ResNet: {config.image_size} pixels, {units}, a map of {layout.grid} places"
    return f"{config.image_size} pixels, {tokens_told(layout)}, {plural(config.depth, 'layer')}"


def tokens_told(layout: Layout) -> str:
    parts = [f"{layout.grid} patches"]
    parts += ["a class token"] if layout.cls else []
    parts += [plural(layout.registers, "register")] if layout.registers else []
    return " + ".join(parts)


def prefix_names(layout: Layout) -> list[str]:
    """What the tokens that are no patches are called."""
    return ["class token"] * layout.cls + [f"register {number + 1}" for number in range(layout.registers)]


def crop_told(photo: Photo) -> str:
    """Which part of the picture the model saw."""
    height, width = photo.seen.shape[:2]
    if min(photo.height, photo.width) > 0.995:
        return f"The model saw all of it, at {height} x {width} pixels."
    part = f"{100 * photo.width:.0f} % of the width and {100 * photo.height:.0f} % of the height"
    return f"The frame marks what the model saw: {part}, at {height} x {width} pixels."


def map_told(heat: HeatMap) -> str:
    """Where a map is brightest, and how much of it lies there."""
    values = np.nan_to_num(heat.values).astype(np.float64)
    grid, flat = Grid(values.shape[0], values.shape[1]), values.ravel()
    most = np.argsort(-flat)[:3]
    told = f"{heat.title}: brightest at {'; '.join(place(int(cell), grid) for cell in most)}."
    positive = flat.clip(0)
    if positive.sum() > 0:
        tenth = max(1, flat.size // 10)
        share = np.sort(positive)[-tenth:].sum() / positive.sum()
        hold = "patch holds" if tenth == 1 else f"{tenth} patches of {flat.size} hold"
        told += f" The brightest {hold} {100 * share:.0f} % of it."
    if below := int((flat < -0.05 * np.abs(flat).max()).sum()) if flat.any() else 0:
        told += f" {plural(below, 'patch is', 'patches are')} blue: below nothing."
    return told


def trial_told(verdict: Verdict, curve: Curve, chance: Sequence[Curve]) -> str:
    """How a map did, in numbers."""
    gone = np.array([each.deletion_area for each in chance])  # (random maps,)
    back = np.array([each.insertion_area for each in chance])
    how = {
        "better": f"Better than chance, by {verdict.both:.1f} times the spread of random maps.",
        "worse": f"Worse than chance, by {-verdict.both:.1f} times the spread of random maps.",
        "unclear": f"Not clearly better than chance: {verdict.both:+.1f} times the spread of random maps.",
    }
    return (
        f"{how[verdict.standing]} "
        f"With its best patches gone first, the class keeps {curve.deletion_area:.2f} of probability on average "
        f"(random {gone.mean():.2f} ± {gone.std(ddof=1):.2f}, less is better); "
        f"with them back first, it has {curve.insertion_area:.2f} "
        f"(random {back.mean():.2f} ± {back.std(ddof=1):.2f}, more is better)."
    )


def belief(verdicts: Sequence[Verdict], titles: Mapping[MapKind, str]) -> str:
    """Which map to believe."""
    sound = [each for each in verdicts if each.standing == "better"]
    if not sound:
        return "No map does clearly better than a random one here in both tests: take none of them for the reason."
    doubtful = [titles[each.kind] for each in verdicts if each.standing != "better"]
    best = max(sound, key=lambda each: each.both)
    told = f"Believe {titles[best.kind]} first: it finds best what the answer hangs on."
    if doubtful:
        told += f" Do not lean on {' or '.join(doubtful)}: not clearly better than chance on this image."
    return told


def turn_told(layers: Sequence[LayerView], classes: Sequence[str]) -> str:
    """From which layer on the answer is what it is in the end."""
    told = [layer for layer in layers if layer.probabilities.size]
    first = [int(layer.probabilities.argmax()) for layer in told]
    since = len(first) - 1
    while since and first[since - 1] == first[-1]:
        since -= 1
    name = classes[first[-1]]
    if not since:
        return f"{name} leads after every layer shown."
    before = f"after layer {told[since - 1].layer} it was {classes[first[since - 1]]}"
    return f"{name} leads from layer {told[since].layer} on; {before}."


def colors_told(colors: Array) -> str:
    """How calm the colors of the features are: the share of neighbors that look alike."""
    steps = [np.abs(np.diff(colors, axis=axis)).max(axis=-1).ravel() for axis in (0, 1)]
    both = np.concatenate(steps)
    alike = float((both < NEAR).mean()) if both.size else 1.0
    rows, columns = colors.shape[:2]
    return f"{rows} x {columns} patches in colors; {100 * alike:.0f} % of neighbors have almost the same."


def positions_told(positions: Array, tiles: Grid, cells: Grid) -> str:
    """How far the likeness of positions (R, S, R, S) reaches, and how many of them are drawn."""
    rows, columns = positions.shape[:2]
    down, right = np.arange(rows), np.arange(columns)
    apart_rows = np.abs(down[:, None] - down)[:, None, :, None]  # (R, 1, R, 1)
    apart_columns = np.abs(right[:, None] - right)[None, :, None, :]  # (1, S, 1, S)
    near = apart_rows + apart_columns == 1  # (R, S, R, S)
    line = ((apart_rows == 0) != (apart_columns == 0)) & ~near
    rest = (apart_rows > 0) & (apart_columns > 0)
    kinds = (("direct neighbors", near), ("others in the same row or column", line), ("the rest", rest))
    parts = [f"{name} {positions[where].mean():.2f}" for name, where in kinds if where.any()]
    told = f"Mean cosine similarity: {series(parts)}." if parts else "One position alone."
    if tiles != (rows, columns) or cells != (rows, columns):
        told += f" Of {rows} x {columns} positions, {tiles} have a tile, which shows {cells} of them."
    return told


def filters_told(shares: Array) -> str:
    """How much of the patch embedding the first filters make up."""
    first, whole = percent(float(shares[0])), percent(float(shares.sum()))
    return f"{len(shares)} principal components: the first holds {first} of the variance, all together {whole}."


def fineness_told(explanation: Explanation, grid: Grid, steps: int) -> str:
    """What was left out of the attention to keep the page small."""
    told = f"Weights are kept in {steps} steps between nothing and the most of each row"
    if grid != explanation.layout.grid:
        told += f"; {explanation.layout.grid} patches are shown as {grid} cells, each the mean of several"
    return f"{told}."


def equation(text: str) -> Markup:
    """An equation, with what follows an underscore set low, after a caret high."""
    lines = "\n".join(printable(line) for line in text.splitlines())
    low = re.sub(r"_(\w+?(?:-1)?)(?!\w)", r"<sub>\1</sub>", str(escape(lines)))
    return Markup(re.sub(r"\^(\w+)", r"<sup>\1</sup>", low).replace("-&gt;", "→"))
