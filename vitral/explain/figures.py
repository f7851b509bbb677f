"""The figures of an explanation: each is readable alone, in colours that every eye can tell apart."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from vitral.errors import VitralError
from vitral.explain.canvas import Drawing
from vitral.explain.explanation import Explanation
from vitral.explain.plots import depth_figure, distance_figure, trials_figure
from vitral.explain.tiles import attention_figure, colours_figure, filters_figure, map_figure, positions_figure


def figures(explanation: Explanation) -> dict[str, Drawing]:
    """Every figure that there is something to draw in, by name: those of the image, then those of the model."""
    return {each.name: each for each in [*image_figures(explanation), *model_figures(explanation)]}


def image_figures(explanation: Explanation) -> list[Drawing]:
    """What is to be seen of the image."""
    layers = explanation.layers
    found = [Drawing(heat.kind, heat.title, partial(map_figure, explanation, heat)) for heat in explanation.maps]
    if any(layer.attention.size for layer in layers):
        found.append(Drawing("heads", "Where each head looks", partial(attention_figure, explanation)))
    if any(layer.probabilities.size for layer in layers):
        found.append(Drawing("depth", "What can be read at each depth", partial(depth_figure, explanation)))
    if explanation.faithfulness.trials:
        found.append(Drawing("believe", "Which map to believe", partial(trials_figure, explanation)))
    if explanation.colours.size:
        found.append(Drawing("features", "What the model holds for alike", partial(colours_figure, explanation)))
    return found


def model_figures(explanation: Explanation) -> list[Drawing]:
    """What is to be seen of the model, whatever the image: Fig. 7 of the paper."""
    view, title = explanation.model, explanation.title
    found = []
    if len(view.filters):
        found.append(Drawing("filters", "What the first layer looks for", partial(filters_figure, view, title)))
    if view.positions.size:
        found.append(
            Drawing("positions", "Which places the model holds for near", partial(positions_figure, view, title))
        )
    if view.distances.size:
        found.append(Drawing("distance", "How far attention looks", partial(distance_figure, view, title)))
    return found


def write_figures(folder: Path, explanations: Sequence[Explanation]) -> list[Path]:
    """Every figure as a PNG: `cat-rollout.png` of an image, `model-filters.png` of the model that they share."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be made: {(error.strerror or str(error)).lower()}"
        raise VitralError(what, code="file.write_failed", where=str(folder), remedy="name another folder") from None
    written = []
    for name, explanation in zip(distinct([each.photo.name for each in explanations]), explanations, strict=True):
        written += [(folder / f"{name}-{each.name}.png", each) for each in image_figures(explanation)]
    written += [(folder / f"model-{each.name}.png", each) for each in model_figures(explanations[0])]
    for path, drawing in written:
        drawing.save(path)
    return [path for path, _ in written]


def distinct(names: Sequence[str]) -> list[str]:
    """Names of files without their endings, a number after those that were there before: `cat`, `cat-2`."""
    stems: list[str] = []
    for name in names:
        stem, number = Path(name).stem, 2
        while stem in stems:
            stem, number = f"{Path(name).stem}-{number}", number + 1
        stems.append(stem)
    return stems
