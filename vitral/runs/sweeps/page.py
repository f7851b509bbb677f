"""The page of a sweep: its table, and a chart of the metric for each setting."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from vitral.html.charts import HEIGHT, WIDTH, Chart, Dot, Line, Tick, linear_axis, svg_path
from vitral.html.page import render
from vitral.runs.sweeps.folder import format_value
from vitral.runs.sweeps.results import CandidateResult, SweepResult, format_metric_value, table

TEMPLATE = Path(__file__).parent / "page.html"


def render_page(title: str, result: SweepResult) -> str:
    """The page as HTML; a sweep that goes on has a page, too."""
    rows, _ = table(result)
    last = [each for each in result.candidates if each.values and each.rung == result.candidates[0].rung]
    paths = [
        path for path in (last[0].settings if last else ()) if len({str(each.settings[path]) for each in last}) > 1
    ]
    failed = [each for each in result.trials if each.code]
    charts = [setting_chart(path, last, result.metric) for path in paths]
    return render(TEMPLATE, title=title, result=result, head=rows[0], rows=rows[1:], charts=charts, failed=failed)


def setting_chart(path: str, candidates: Sequence[CandidateResult], metric: str) -> Chart:
    """The metric of every trial by the value of one setting, and a line through the means."""
    values = _ordered([each.settings[path] for each in candidates])
    groups = {
        value: [
            (each, score) for each in candidates if format_value(each.settings[path]) == value for score in each.values
        ]
        for value in values
    }
    scores = [score for group in groups.values() for _, score in group]
    y = linear_axis(min(scores), max(scores), HEIGHT, 0, 6)
    places = {value: WIDTH * (number + 0.5) / len(values) for number, value in enumerate(values)}
    dots = tuple(
        Dot("trial", places[value], y.scale(score), f"{_label(each)}: {format_metric_value(score, metric)}")
        for value, group in groups.items()
        for each, score in group
    )
    means = {value: mean(score for _, score in group) for value, group in groups.items()}
    shown = ", ".join(f"{value} {format_metric_value(each, metric)}" for value, each in means.items())
    text = "{:g}".format if metric == "loss" else lambda share: f"{100 * share:g}%"
    return Chart(
        title=path,
        alt=f"Mean {metric} by {path}: {shown}",
        x_ticks=tuple(Tick(place, value) for value, place in places.items()),
        y_ticks=y.ticks(text),
        x_label=path,
        lines=(Line("mean", svg_path([(places[value], y.scale(each)) for value, each in means.items()])),),
        dots=dots,
        caption=f"Each dot is a trial, the line joins the means: {shown}.",
    )


def _ordered(values: Sequence[object]) -> list[str]:
    """Numbers from the smallest on, other values as they came."""
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    ordered = sorted(values, key=float) if numbers else values  # type: ignore[arg-type]  # all are numbers
    return list(dict.fromkeys(format_value(each) for each in ordered))


def _label(candidate: CandidateResult) -> str:
    return ", ".join(f"{path}={format_value(value)}" for path, value in candidate.settings.items())
