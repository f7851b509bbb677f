"""The calibration diagram: how often answers are right, by how sure they are."""

from vitral.evaluate.calibration import Calibration
from vitral.report.chart import HEIGHT, WIDTH, Bar, Chart, Line, Tick, exact_axis
from vitral.report.words import percent, points


def draw_calibration(calibration: Calibration, accuracy: float) -> Chart:
    """A bar for each bin, and the gap between what was said and what was right; on the dashed line there is none."""
    across, upward = exact_axis(0.0, 1.0, WIDTH, 5), exact_axis(0.0, 1.0, HEIGHT, 5)
    bars = []
    for each in calibration.bins:
        if each.accuracy is None or each.confidence is None:
            continue
        label = f"{each.images:,} answers said {percent(each.confidence)}, {percent(each.accuracy)} are right"
        left, width = across.place(each.low) + 1, across.place(each.high) - across.place(each.low) - 2
        top, said = upward.place(each.accuracy), upward.place(each.confidence)
        gap = "sure" if said > top else "modest"
        bars.append(Bar("bin", left, HEIGHT - min(top, said), width, min(top, said), label))
        bars.append(Bar(gap, left, HEIGHT - max(top, said), width, round(abs(top - said), 1), label))
    return Chart(
        title="calibration",
        alt=f"Calibration: expected calibration error {percent(calibration.error)}",
        across=tuple(Tick(across.place(value), f"{100 * value:g} %") for value in across.ticks()),
        upward=tuple(Tick(HEIGHT - upward.place(value), f"{100 * value:g} %") for value in upward.ticks()),
        across_name="how sure the model says it is",
        lines=(Line("even", f"M0 {HEIGHT:g}L{WIDTH:g} 0"),),
        bars=tuple(bars),
        dots=(),
        legend=(("bin", "right"), ("sure", "too sure"), ("modest", "too modest")),
        caption=f"Expected calibration error {percent(calibration.error)}, Brier score {calibration.brier:.3f}. "
        + _verdict(calibration.confidence - accuracy),
    )


def _verdict(excess: float) -> str:
    """In a sentence, whether the model is too sure of itself."""
    if abs(excess) < 0.02:
        return "On the whole it is as sure as it is right."
    manner = "surer of itself than it should be" if excess > 0 else "right more often than it dares to say"
    return f"It is {manner}, by {points(abs(excess))} on average."
