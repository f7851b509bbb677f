"""Texts of the page of an explanation, made from its numbers.  R x S patches, K classes."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup, escape

from vitral.core.errors import format_choices
from vitral.explanation.explanation import (
    CLEAR,
    MAP_TITLES,
    VERDICTS,
    Array,
    Curve,
    Explanation,
    LayerView,
    MapKind,
    MapScore,
    Photo,
)
from vitral.html.page import plural, printable
from vitral.html.text import percent
from vitral.models.base import Grid, Layout
from vitral.models.resnet import Resnet

NEAR = 0.1  # colors that differ by less look the same
STRIPES = 7  # pixels of a filter that has room for them


def cell_name(cell: int, grid: Grid) -> str:
    """The row and column of a cell, counting from 1 at the top left."""
    return f"row {cell // grid.columns + 1}, column {cell % grid.columns + 1}"


def describe_model(explanation: Explanation) -> str:
    """The model in a line: image size, tokens, layers."""
    config, layout = explanation.config, explanation.layout
    if isinstance(config, Resnet):
        units = plural(sum(config.layers), "residual unit")
        return f"a ResNet: {config.image_size} pixels, {units}, a {layout.grid} feature map"
    tokens = [f"{layout.grid} patches"] + ["a class token"] * layout.cls
    tokens += [plural(layout.registers, "register")] if layout.registers else []
    return f"{config.image_size} pixels, {' + '.join(tokens)}, {plural(config.depth, 'layer')}"


def prefix_names(layout: Layout) -> list[str]:
    """The names of the tokens before the patches."""
    return ["class token"] * layout.cls + [f"register {number + 1}" for number in range(layout.registers)]


def describe_crop(photo: Photo) -> str:
    """Which part of the image the model is given."""
    height, width = photo.crop.shape[:2]
    if min(photo.height, photo.width) > 0.995:
        return f"The model is given the whole image, at {height} x {width} pixels."
    part = f"{100 * photo.width:.0f}% of the width and {100 * photo.height:.0f}% of the height"
    return f"The frame marks what the model is given: {part}, at {height} x {width} pixels."


def describe_map(title: str, values: Array) -> str:
    """The highest patches of a map (R, S), and how much of it they hold."""
    values = np.nan_to_num(values)
    grid, flat = Grid(values.shape[0], values.shape[1]), values.ravel().astype(np.float64)
    highest = "; ".join(cell_name(int(cell), grid) for cell in np.argsort(-flat)[:3])
    text = f"{title}: highest at {highest}."
    positive = flat.clip(0)
    if positive.sum() > 0:
        tenth = max(1, flat.size // 10)
        share = np.sort(positive)[-tenth:].sum() / positive.sum()
        hold = "patch holds" if tenth == 1 else f"{tenth} of {flat.size} patches hold"
        text += f" The top {hold} {100 * share:.0f}% of the total."
    if below := int((flat < -0.05 * np.abs(flat).max()).sum()) if flat.any() else 0:
        text += f" {plural(below, 'patch is', 'patches are')} negative (blue)."
    return text


def describe_score(score: MapScore, curve: Curve, random: Sequence[Curve]) -> str:
    """The score of a map and its areas beside those of random maps."""
    deletion = np.array([each.deletion_auc for each in random])  # (random maps,)
    insertion = np.array([each.insertion_auc for each in random])
    return (
        f"{VERDICTS[score.verdict].capitalize()}: score {score.combined:+.1f}. "
        f"Deletion area {curve.deletion_auc:.2f} (random {deletion.mean():.2f} ± {deletion.std(ddof=1):.2f}, "
        f"lower is better), insertion area {curve.insertion_auc:.2f} "
        f"(random {insertion.mean():.2f} ± {insertion.std(ddof=1):.2f}, higher is better)."
    )


def describe_scores(scores: Mapping[MapKind, MapScore]) -> str:
    """Which map to trust, or that none stands out; empty where no map was tested."""
    if not scores:
        return ""
    faithful = [kind for kind, score in scores.items() if score.verdict == "better"]
    if not faithful:
        return "No map is clearly better than a random one in both tests: do not rely on any of them for this image."
    best = max(faithful, key=lambda kind: scores[kind].combined)
    lead = {kind: abs(scores[best].combined - score.combined) for kind, score in scores.items() if kind != best}
    text = f"{MAP_TITLES[best]} is the most faithful map for this image."
    if rivals := [MAP_TITLES[kind] for kind in sorted(lead, key=lead.__getitem__) if lead[kind] < CLEAR]:
        text = f"{MAP_TITLES[best]} cannot be told apart from {format_choices(rivals)}: the difference is not clear."
    if others := [MAP_TITLES[kind] for kind in scores if kind not in faithful]:
        text += f" Not clearly better than random: {', '.join(others)}."
    return text


def describe_logit_lens(layers: Sequence[LayerView], classes: Sequence[str]) -> str:
    """From which layer on the predicted class leads."""
    layers = [layer for layer in layers if layer.probabilities.size]
    leading = [int(layer.probabilities.argmax()) for layer in layers]
    since = len(leading) - 1
    while since and leading[since - 1] == leading[-1]:
        since -= 1
    if not since:
        return f"{classes[leading[-1]]} leads after every layer shown."
    before = f"after layer {layers[since - 1].layer} it was {classes[leading[since - 1]]}"
    return f"{classes[leading[-1]]} leads from layer {layers[since].layer} on; {before}."


def describe_colors(colors: Array) -> str:
    """The share of neighboring patches that have almost the same color."""
    steps = np.concatenate([np.abs(np.diff(colors, axis=axis)).max(axis=-1).ravel() for axis in (0, 1)])
    alike = float((steps < NEAR).mean()) if steps.size else 1.0
    rows, columns = colors.shape[:2]
    return f"{rows} x {columns} patches; {100 * alike:.0f}% of neighbors have almost the same color."


def describe_positions(positions: Array, tiles: Grid, cells: Grid) -> str:
    """The mean similarity of positions (R, S, R, S) by distance, and how many of them are drawn."""
    rows, columns = positions.shape[:2]
    down, right = np.arange(rows), np.arange(columns)
    apart_rows = np.abs(down[:, None] - down)[:, None, :, None]  # (R, 1, R, 1)
    apart_columns = np.abs(right[:, None] - right)[None, :, None, :]  # (1, S, 1, S)
    near = apart_rows + apart_columns == 1  # (R, S, R, S)
    line = ((apart_rows == 0) != (apart_columns == 0)) & ~near
    rest = (apart_rows > 0) & (apart_columns > 0)
    kinds = (("direct neighbors", near), ("others in the same row or column", line), ("the rest", rest))
    parts = [f"{name} {positions[where].mean():.2f}" for name, where in kinds if where.any()]
    text = f"Mean cosine similarity: {', '.join(parts)}." if parts else "There is a single position."
    if tiles != (rows, columns) or cells != (rows, columns):
        text += f" Shown: {tiles} of {rows} x {columns} positions, each compared with {cells}."
    return text


def describe_filters(filters: Array, explained_variance: Array) -> str:
    """How much of the variance of the filters (m, h, w, C) the components explain, and how to read large ones."""
    first, total = percent(float(explained_variance[0])), percent(float(explained_variance.sum()))
    text = f"{len(explained_variance)} principal components explain {total} of the variance, the first {first}."
    if min(filters.shape[1:3]) < STRIPES:
        return text
    return f"{text} A trained model has smooth colors and stripes, as in a Fourier basis; an untrained one has noise."


def describe_precision(explanation: Explanation, grid: Grid, steps: int) -> str:
    """What was rounded or averaged in the attention to keep the page small."""
    patches = explanation.layout.grid
    averaged = "" if grid == patches else f"; {patches} patches are averaged into {grid} cells"
    return f"Weights are stored in {steps} steps between 0 and the maximum of each row{averaged}."


def format_equation(text: str) -> Markup:
    """An equation as HTML, with subscripts after underscores and superscripts after carets."""
    lines = "\n".join(printable(line) for line in text.splitlines())
    low = re.sub(r"_(\w+?(?:-1)?)(?!\w)", r"<sub>\1</sub>", str(escape(lines)))
    return Markup(re.sub(r"\^(\w+)", r"<sup>\1</sup>", low).replace("-&gt;", "→"))
