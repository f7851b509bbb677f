"""The curves of a run: what was measured, epoch by epoch."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from vitral.data.samples import SPLITS
from vitral.html.charts import HEIGHT, WIDTH, Axis, Bar, Chart, Dot, LegendEntry, Line, linear_axis, svg_path
from vitral.html.text import format_loss, percent
from vitral.runs.report.report import MetricLine as Measured

NOT_MEASURED = ("step", "epoch", "split")
MAX_POINTS = 300  # of a line: more could not be told apart
MAX_BANDS = 60  # that tell their numbers under the pointer
MAX_DOTS = 80
BEST = {"loss": (min, "Lowest"), "accuracy": (max, "Highest")}


class MetricPoint(NamedTuple):
    """A value at a moment of the run."""

    step: int
    epoch: float
    value: float


def metric_charts(lines: Sequence[Measured]) -> list[Chart]:
    """A chart for each thing measured: the loss first, then accuracy and whatever else, and the rate last."""
    names = dict.fromkeys(name for line in lines for name in line if name not in NOT_MEASURED)
    first = [name for name in ("loss", "accuracy") if name in names]
    last = [name for name in ("rate",) if name in names]
    others = [name for name in names if name not in (*first, *last)]
    return [_curve(name, lines) for name in (*first, *others, *last) if any(_spots(lines, name).values())]


def smooth(values: Sequence[float]) -> list[float]:
    """Means over a twenty-fifth of the values, centered, so that a curve is not late; shorter at the ends."""
    reach = len(values) // 50
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    spans = ((max(0, place - reach), min(len(values), place + reach + 1)) for place in range(len(values)))
    return [(sums[stop] - sums[start]) / (stop - start) for start, stop in spans]


def downsample(spots: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Few enough spots to draw: of each stretch the lowest and the highest, in turn, so that no outlier is lost."""
    if len(spots) <= MAX_POINTS:
        return list(spots)
    found = []
    for stretch in split_evenly(spots, MAX_POINTS // 2):
        ends = {min(stretch, key=lambda spot: spot.value), max(stretch, key=lambda spot: spot.value)}
        found += sorted(ends)
    return found


def split_evenly(spots: Sequence[MetricPoint], most: int) -> Iterator[Sequence[MetricPoint]]:
    """The spots in at most so many stretches of nearly the same length."""
    count = min(most, len(spots))
    ends = [len(spots) * number // count for number in range(count + 1)]
    return (spots[start:stop] for start, stop in pairwise(ends))


def _spots(lines: Sequence[Measured], name: str) -> dict[str, list[MetricPoint]]:
    """What was measured on each split; what is infinite has no place on a page."""
    return {
        split: [
            MetricPoint(line["step"], line["epoch"], line[name])
            for line in lines
            if line["split"] == split and name in line and isfinite(line[name])
        ]
        for split in SPLITS
    }


def _curve(name: str, lines: Sequence[Measured]) -> Chart:
    found = _spots(lines, name)
    train = found["train"]
    even = name == "rate"  # it is set, not measured: nothing to smooth
    smoothed = [
        spot._replace(value=value) for spot, value in zip(train, smooth([spot.value for spot in train]), strict=True)
    ]
    shown = [*(train if even else smoothed), *found["val"], *found["test"]]
    values = [spot.value for spot in shown]
    x = linear_axis(0.0, max(spot.epoch for spot in shown), 0, WIDTH, 6, nice=False)
    y = linear_axis(0.0 if even else min(values), max(values), HEIGHT, 0, 6)
    words = _words(name)

    def point(spot: MetricPoint) -> tuple[float, float]:
        return x.scale(spot.epoch), y.scale(spot.value)

    lines_drawn = [] if even else [Line("raw", svg_path([point(spot) for spot in downsample(train)]))]
    lines_drawn.append(
        Line("train", svg_path([point(spot) for spot in (downsample(train) if even else _thin(smoothed))]))
    )
    lines_drawn += [Line(split, svg_path([point(spot) for spot in found[split]])) for split in ("val", "test")]
    dots = tuple(
        Dot(split, *point(spot), f"{split}, epoch {spot.epoch:g}: {words(spot.value)}")
        for split in ("val", "test")
        for spot in _some(found[split])
    )
    legend = [] if even else [LegendEntry(split, split) for split in SPLITS if found[split]]
    return Chart(
        title="learning rate" if even else name,
        alt=_told(name, {split: smoothed if split == "train" else found[split] for split in SPLITS}, words),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(lambda value: _tick(name, value)),
        x_label="epoch",
        lines=tuple(line for line in lines_drawn if line.path),
        bars=tuple(_bands(train, x, words)),
        dots=dots,
        legend=tuple(legend),
        caption=_best(name, found, words),
    )


def _bands(train: Sequence[MetricPoint], x: Axis, words: Callable[[float], str]) -> Iterator[Bar]:
    """Upright strips side by side, each of which tells the mean of the training steps in it."""
    left = 0.0
    for stretch in split_evenly(train, MAX_BANDS) if train else ():
        right = x.scale(stretch[-1].epoch)
        mean = sum(spot.value for spot in stretch) / len(stretch)
        steps = (
            f"step {stretch[0].step:,}" if len(stretch) == 1 else f"steps {stretch[0].step:,} to {stretch[-1].step:,}"
        )
        label = f"train, epoch {stretch[-1].epoch:g}, {steps}: {words(mean)}"
        yield Bar("band", left, 0.0, round(right - left, 1), HEIGHT, label)
        left = right


def _thin(spots: Sequence[MetricPoint]) -> list[MetricPoint]:
    return [*(stretch[0] for stretch in split_evenly(spots, MAX_POINTS)), spots[-1]] if spots else []


def _some(spots: Sequence[MetricPoint]) -> list[MetricPoint]:
    """The last of each stretch: what a run ended with is always among them."""
    return [stretch[-1] for stretch in split_evenly(spots, MAX_DOTS)] if spots else []


def _told(name: str, found: dict[str, list[MetricPoint]], words: Callable[[float], str]) -> str:
    parts = [
        f"{split} from {words(spots[0].value)} to {words(spots[-1].value)}" for split, spots in found.items() if spots
    ]
    return f"{name} by epoch: {', '.join(parts)}"


def _best(name: str, found: dict[str, list[MetricPoint]], words: Callable[[float], str]) -> str:
    """Where the curves of other splits were best; of the rate, where it was highest."""
    if name == "rate":
        peak = max((spot for spots in found.values() for spot in spots), key=lambda spot: spot.value)
        return f"Highest at epoch {peak.epoch:g}: {words(peak.value)}."
    if name not in BEST:
        return ""
    choose, word = BEST[name]
    best = {split: choose(found[split], key=lambda spot: spot.value) for split in ("val", "test") if found[split]}
    return " ".join(
        f"{word} on {split} at epoch {spot.epoch:g}: {words(spot.value)}; last {words(found[split][-1].value)}."
        for split, spot in best.items()
    )


def _words(name: str) -> Callable[[float], str]:
    return percent if name == "accuracy" else format_loss


def _tick(name: str, value: float) -> str:
    return f"{100 * value:g} %" if name == "accuracy" else f"{value:g}"
