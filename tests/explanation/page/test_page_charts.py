"""Curves and dots are drawn where their numbers say."""

import re

import numpy as np
import pytest

from tests.explanation.stand_in import CLASSES, stand_in
from vitral.explanation.explanation import Curve
from vitral.explanation.page.page import MAX_CLASSES, distance_chart, faithfulness_charts, logit_lens_chart
from vitral.html.charts import HEIGHT, WIDTH, Chart


def curve(deletion: list[float], insertion: list[float]) -> Curve:
    fractions = np.linspace(0, 1, len(deletion), dtype=np.float32)
    return Curve(fractions, np.array(deletion, np.float32), np.array(insertion, np.float32))


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([-\d.]+)", path)]


def test_a_curve_is_drawn_over_the_band_of_random_maps() -> None:
    random = [curve([1, 0.4, 0], [0, 0.6, 1]), curve([1, 0.8, 0], [0, 0.2, 1])]
    deletion, insertion = faithfulness_charts(curve([1, 0.25, 0], [0, 0.75, 1]), random, "Rollout")
    drawn = {line.style: points(line.path) for line in deletion.lines}
    assert list(drawn) == ["band", "random", "map"]
    assert drawn["map"] == [(0, 0), (WIDTH / 2, 0.75 * HEIGHT), (WIDTH, HEIGHT)]
    assert drawn["random"][1][1] == pytest.approx(0.4 * HEIGHT)
    assert drawn["band"][1][1] == pytest.approx(0.2 * HEIGHT)
    assert drawn["band"][4][1] == pytest.approx(0.6 * HEIGHT)
    assert re.findall(r"[\d.]*\d", deletion.alt) == ["1.00", "0.00", "0.38", "0.55"]
    assert re.findall(r"[\d.]*\d", insertion.alt) == ["0.00", "1.00", "0.62", "0.45"]


def test_small_probabilities_have_an_axis_of_their_own() -> None:
    deletion, insertion = faithfulness_charts(curve([0.04, 0.03], [0.01, 0.04]), [], "Rollout")
    assert [tick.label for tick in deletion.y_ticks] == ["0", "0.01", "0.02", "0.03", "0.04"]
    assert deletion.y_ticks == insertion.y_ticks
    assert [line.style for line in deletion.lines] == ["map"]


def test_the_logit_lens_shows_the_classes_that_lead_in_the_end_and_those_that_led_before() -> None:
    explanation = stand_in(layers=5)
    chart = logit_lens_chart(explanation.layers, CLASSES)
    assert chart is not None
    assert len(chart.lines) == len(chart.legend) == MAX_CLASSES
    order = np.argsort(-explanation.layers[-1].probabilities)
    assert [entry.name for entry in chart.legend[:3]] == [CLASSES[label] for label in order[:3]]
    assert chart.legend[0].value == f"{100 * explanation.probabilities.max():.1f}%"
    assert [bar.layer for bar in chart.bars] == [1, 2, 3, 4, 5]
    x, y = points(chart.lines[0].path)[-1]
    assert x == pytest.approx(0.9 * WIDTH)
    assert y == pytest.approx(HEIGHT * (1 - explanation.probabilities.max()), abs=0.06)
    assert f"1, 2, 3, 4, 5: {CLASSES[order[0]]} " in chart.alt


def test_without_a_head_or_layers_there_is_no_logit_lens() -> None:
    assert logit_lens_chart(stand_in(classes=()).layers, ()) is None
    assert logit_lens_chart((), CLASSES) is None


def test_every_head_has_a_dot_at_its_distance() -> None:
    chart = distance_chart(np.array([[10, 40], [95, 70], [30, np.nan]], np.float32), 3)
    assert chart is not None
    assert [tick.label for tick in chart.y_ticks] == ["0", "20", "40", "60", "80", "100"]
    assert [(dot.layer, dot.head) for dot in chart.dots] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
    assert chart.dots[2].y == pytest.approx(HEIGHT * 0.05, abs=0.06)
    assert chart.dots[2].x == pytest.approx(WIDTH / 2, abs=0.1)
    assert chart.dots[2].label == "layer 2, head 1: 95 pixels"
    assert re.findall(r"\d+", chart.alt) == ["3", "10", "40", "30", "30"]
    assert distance_chart(np.zeros((0, 0), np.float32), 0) is None
    assert inside(distance_chart(np.zeros((1, 1), np.float32), 1))


def inside(chart: Chart | None) -> bool:
    return chart is not None and all(0 <= dot.x <= WIDTH and 0 <= dot.y <= HEIGHT for dot in chart.dots)


def test_deep_models_label_every_second_layer() -> None:
    chart = distance_chart(np.ones((24, 2), np.float32), 1)
    assert chart is not None
    assert [tick.label for tick in chart.x_ticks] == [str(layer) for layer in range(1, 25, 2)]
