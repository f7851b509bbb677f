"""The page of an evaluation of robustness: a chart for each part, and what the images looked like."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitral.core.storage import write_file_atomically
from vitral.data.thumbnails import picture_url
from vitral.evaluation.robustness.conditions import Part
from vitral.evaluation.robustness.evaluator import Examples, Picture, RobustnessCurve, RobustnessResult
from vitral.evaluation.subject import SubjectModel
from vitral.html.charts import Chart, Dot, LegendEntry, Line, Tick, linear_axis, svg_path
from vitral.html.page import plural, render
from vitral.html.text import percent

TEMPLATE = Path(__file__).with_name("page.html")
STYLES = ("first", "second", "third", "fourth", "fifth")  # of the lines of a chart
WIDTH, HEIGHT = 400.0, 220.0
PICTURES = 5  # of a curve
TITLES: dict[Part, tuple[str, str, str]] = {  # heading, explanation, x axis
    "occlusion": (
        "Occlusion",
        "Cells of the image are black: chosen at random, from the most salient on, or from the least salient on. "
        "Salient are those on which the loss depends most (mean gradient).",
        "cells dropped",
    ),
    "shuffle": ("Shuffled cells", "The image is cut into a grid, and its cells change places.", "grid"),
    "texture": (
        "Texture",
        "The amplitudes of the Fourier transform are mixed with those of another image, so that shapes stay and "
        "texture goes; or only edges stay.",
        "share of the other image",
    ),
    "patch": (
        "Adversarial patch",
        "One patch for all images, optimized on held-out images, at a random place of each; beside it a patch of "
        "noise of the same size.",
        "area of the patch",
    ),
    "attack": (
        "Adversarial attacks",
        "Each level changes by at most epsilon: in one step (FGSM), or in ten (PGD).",
        "epsilon, of 255 levels",
    ),
    "corruptions": ("Corruptions", "The mean of 15 corruptions of 4 kinds.", "severity"),
}
KINDS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}


class Shown(NamedTuple):
    """A picture with its caption."""

    source: str
    caption: str


class Strip(NamedTuple):
    """The pictures of a curve."""

    name: str
    pictures: tuple[Shown, ...]


class Section(NamedTuple):
    """A part on the page."""

    part: Part
    title: str
    text: str
    chart: Chart
    strips: tuple[Strip, ...]


def write_page(path: Path, result: RobustnessResult, examples: Examples, subject: SubjectModel) -> None:
    """Write the page, one file."""
    write_file_atomically(path, render_page(result, examples, subject))


def render_page(result: RobustnessResult, examples: Examples, subject: SubjectModel) -> str:
    """The page as HTML."""
    parts = dict.fromkeys(curve.part for curve in result.curves)
    return render(
        TEMPLATE,
        result=result,
        data=subject.samples.where,
        images=plural(result.images, "image"),
        split=subject.split,
        percent=percent,
        tiles=list_tiles(result),
        plain=[Shown(picture_url(pixels), "unchanged") for pixels in examples.plain],
        sections=[describe_part(part, result, examples) for part in parts],
        errors={
            name: percent(error) for name, error in (result.corruptions.errors if result.corruptions else {}).items()
        },
    )


def list_tiles(result: RobustnessResult) -> list[tuple[str, str]]:
    """The numbers at the top: the accuracy, and the mean under each curve of most parts."""
    ci = f"{percent(result.ci95.low)} to {percent(result.ci95.high)}"
    tiles = [(f"accuracy of unchanged images, 95% CI {ci}", percent(result.top1))]
    if found := result.corruptions:
        tiles += [("mean corruption error, relative to no other model", percent(found.mean_error))]
        tiles += [(f"mCE, relative to {found.relative_to}", percent(found.mce))] if found.mce is not None else []
    tiles += [
        (f"mean accuracy: {TITLES[curve.part][0].lower()}, {curve.name}", percent(curve.mean()))
        for curve in result.curves
        if curve.part != "corruptions"
    ]
    return tiles


def describe_part(part: Part, result: RobustnessResult, examples: Examples) -> Section:
    """The chart and the pictures of a part."""
    title, text, x_label = TITLES[part]
    curves = result.of(part)
    drawn = mean_curves(curves) if part == "corruptions" else curves
    return Section(part, title, text, draw_chart(title, x_label, drawn), tuple(draw_strips(part, examples)))


def mean_curves(curves: Sequence[RobustnessCurve]) -> list[RobustnessCurve]:
    """The mean of each kind of corruption."""
    found = []
    for kind, names in KINDS.items():
        own = [curve for curve in curves if curve.name in names]
        points = [
            each[0].model_copy(update={"top1": sum(point.top1 for point in each) / len(each)})
            for each in zip(*(curve.points for curve in own), strict=True)
        ]
        found.append(RobustnessCurve(part="corruptions", name=kind, points=tuple(points)))
    return found


def draw_chart(title: str, x_label: str, curves: Sequence[RobustnessCurve]) -> Chart:
    """Accuracy against what was done; points that have no scale stand at equal distances."""
    up = linear_axis(0, 100, HEIGHT, 0, 5)
    labels = {point.x: point.label for curve in curves for point in curve.points}
    places = {x: WIDTH * number / max(1, len(labels) - 1) for number, x in enumerate(sorted(labels))}
    lines, dots, legend = [], [], []
    for style, curve in zip(STYLES, curves, strict=False):
        points = sorted(curve.points, key=lambda point: point.x)
        where = [(places[point.x], up.scale(100 * point.top1)) for point in points]
        lines.append(Line(style, svg_path(where)))
        for (x, y), point in zip(where, points, strict=True):
            dots.append(Dot(style, x, y, f"{curve.name}, {point.label}: {percent(point.top1)}"))
        legend.append(LegendEntry(style, curve.name, percent(curve.mean())))
    ends = "; ".join(
        f"{curve.name} from {percent(curve.points[0].top1)} to {percent(curve.points[-1].top1)}" for curve in curves
    )
    return Chart(
        alt=f"{title}: accuracy by {x_label}. {ends}",
        x_ticks=tuple(Tick(places[x], short_label(labels[x])) for x in places),
        y_ticks=up.ticks("{:g}%".format),
        x_label=x_label,
        y_label="accuracy",
        lines=tuple(lines),
        dots=tuple(dots),
        legend=tuple(legend),
    )


def short_label(label: str) -> str:
    """The label of a tick: what several curves share."""
    return {"unchanged": "none", "edges": "100%"}.get(label, label.removeprefix("severity ").removesuffix("/255"))


def draw_strips(part: Part, examples: Examples) -> list[Strip]:
    """A few pictures of each curve; of corruptions those of the severities 1, 3 and 5."""
    names = dict.fromkeys(each.condition.curve for each in (examples.changed or [[]])[0] if each.condition.part == part)
    found = []
    for name in names:
        pictures: list[Shown] = []
        for changed in examples.changed:
            own = [each for each in changed if (each.condition.part, each.condition.curve) == (part, name)]
            kept = own[::2] if part == "corruptions" else spaced(own)
            pictures += [Shown(picture_url(each.pixels), each.condition.label) for each in kept]
        found.append(Strip(name, tuple(pictures)))
    return found


def spaced(items: list[Picture]) -> list[Picture]:
    """At most so many of the items, the last among them."""
    step = -(-len(items) // PICTURES)
    return items[::-1][::step][::-1]
