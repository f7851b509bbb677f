"""The calibration diagram: bars as high as the shares."""

import re

import pytest

from tests.evaluation.test_accuracy_calibration import said
from vitral.evaluation.accuracy import compute_calibration
from vitral.html.charts import HEIGHT, WIDTH
from vitral.runs.report.charts import calibration_chart


def test_bars_are_as_high_as_the_answers_are_right() -> None:
    # Two say 0.9 and one is right, two say 0.65 and both are right.
    chart = calibration_chart(compute_calibration(said([0.9, 0.9, 0.65, 0.65], [0, 1, 0, 0])), 0.75)
    modest, spare, sure, gap = chart.bars
    assert [bar.style for bar in chart.bars] == ["bin", "underconfident", "bin", "overconfident"]
    assert modest.height == pytest.approx(0.65 * HEIGHT)
    assert spare.height == pytest.approx(0.35 * HEIGHT)
    assert spare.y == 0
    assert sure.height == pytest.approx(0.5 * HEIGHT)
    assert gap.height == pytest.approx(0.4 * HEIGHT)
    assert gap.y + gap.height == pytest.approx(sure.y) == pytest.approx(0.5 * HEIGHT)
    assert modest.x == pytest.approx(9 / 15 * WIDTH + 1)
    assert re.findall(r"[\d.]+", gap.label) == ["2", "90.0", "50.0"]
    assert "37.5%" in chart.alt


@pytest.mark.parametrize(
    ("probability", "accuracy", "told"),
    [(0.9, 0.9, "agree"), (0.9, 0.5, "overconfident by 40.0 points"), (0.6, 0.9, "underconfident by 30.0 points")],
)
def test_the_caption_says_whether_to_believe_it(probability: float, accuracy: float, told: str) -> None:
    assert told in calibration_chart(compute_calibration(said([probability], [0])), accuracy).caption
