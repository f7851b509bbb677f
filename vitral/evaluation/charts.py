"""Charts of results: the reliability diagram and the risk-coverage curve."""

from vitral.evaluation.abstention import AbstentionResult
from vitral.evaluation.calibration import CalibrationErrors, CalibrationResult
from vitral.html.charts import HEIGHT, WIDTH, Axis, Chart, Dot, LegendEntry, Line, linear_axis, svg_path
from vitral.html.text import percent


def _percent(value: float) -> str:
    return f"{100 * value:g}%"


def reliability_chart(result: CalibrationResult) -> Chart:
    """Accuracy by confidence, as the model is and with the fitted temperature; on the diagonal both agree."""
    x, y = linear_axis(0.0, 1.0, 0, WIDTH, 5), linear_axis(0.0, 1.0, HEIGHT, 0, 5)
    curves = {"train": ("as it is", result.now)}
    if result.scaled and result.temperature:
        curves["val"] = (f"temperature {result.temperature:.3g}", result.scaled)
    dots = [dot for style, (_, errors) in curves.items() for dot in _bin_dots(style, errors, x, y)]
    paths = {style: [(dot.x, dot.y) for dot in dots if dot.style == style] for style in curves}
    return Chart(
        title="reliability",
        alt=f"Reliability diagram: expected calibration error {percent(result.now.ece)}",
        x_ticks=x.ticks(_percent),
        y_ticks=y.ticks(_percent),
        x_label="confidence; y: accuracy",
        lines=(
            Line("raw", f"M0 {HEIGHT:g}L{WIDTH:g} 0"),
            *(Line(style, svg_path(points)) for style, points in paths.items()),
        ),
        dots=tuple(dots),
        legend=tuple(LegendEntry(style, name) for style, (name, _) in curves.items()),
    )


def _bin_dots(style: str, errors: CalibrationErrors, x: Axis, y: Axis) -> list[Dot]:
    return [
        Dot(
            style,
            x.scale(each.confidence),
            y.scale(each.accuracy),
            f"{each.images:,} images: confidence {percent(each.confidence)}, accuracy {percent(each.accuracy)}",
        )
        for each in errors.bins
        if each.confidence is not None and each.accuracy is not None
    ]


def coverage_chart(result: AbstentionResult) -> Chart:
    """The share of wrong answers by the share of images that are answered."""
    risks = [1 - point.accuracy for point in result.points]
    x, y = linear_axis(0.0, 1.0, 0, WIDTH, 5), linear_axis(0.0, max(*risks, 0.01), HEIGHT, 0, 5)
    dots = tuple(
        Dot(
            "train",
            x.scale(point.coverage),
            y.scale(1 - point.accuracy),
            f"threshold {point.threshold:.3f}: {percent(point.coverage)} answered, {percent(point.accuracy)} right",
        )
        for point in result.points
    )
    return Chart(
        title="risk and coverage",
        alt=f"Risk-coverage curve with an area of {result.aurc:.4f}",
        x_ticks=x.ticks(_percent),
        y_ticks=y.ticks(_percent),
        x_label="coverage; y: risk",
        lines=(Line("train", svg_path([(dot.x, dot.y) for dot in dots])),),
        dots=dots,
    )
