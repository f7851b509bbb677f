"""Curves and dots stand where their numbers say."""

import re

import numpy as np
import pytest

from tests.explanation.stand_in import CLASSES, stand_in
from vitral.explanation.explanation import Curve
from vitral.explanation.page.charts import HEIGHT, MOST_CLASSES, WIDTH, Chart, distance_chart, readings, trial_charts


def curve(deletion: list[float], insertion: list[float]) -> Curve:
    shares = np.linspace(0, 1, len(deletion), dtype=np.float32)
    return Curve(shares, np.array(deletion, np.float32), np.array(insertion, np.float32))


def places(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([-\d.]+)", path)]


def test_a_trial_is_drawn_before_the_band_of_random_maps() -> None:
    chance = [curve([1, 0.4, 0], [0, 0.6, 1]), curve([1, 0.8, 0], [0, 0.2, 1])]
    deletion, insertion = trial_charts(curve([1, 0.25, 0], [0, 0.75, 1]), chance, "Rollout")
    drawn = {line.style: places(line.path) for line in deletion.lines}
    assert drawn["map"] == [(0, 0), (WIDTH / 2, 0.75 * HEIGHT), (WIDTH, HEIGHT)]
    assert drawn["chance"][1][1] == pytest.approx(0.4 * HEIGHT)
    band = places(deletion.band)
    assert band[1][1] == pytest.approx(0.2 * HEIGHT)
    assert band[4][1] == pytest.approx(0.6 * HEIGHT)
    assert deletion.alt == (
        "While patches go in the order of Rollout, the probability goes from 1.00 to 0.00: "
        "0.38 on average, and 0.55 in random order."
    )
    assert "come back" in insertion.alt
    assert "0.62 on average, and 0.45 in random order" in insertion.alt


def test_small_probabilities_have_an_axis_of_their_own() -> None:
    deletion, insertion = trial_charts(curve([0.04, 0.03], [0.01, 0.04]), [], "Rollout")
    assert [tick.text for tick in deletion.upward] == ["0.00", "0.03", "0.05"]
    assert deletion.upward == insertion.upward
    assert deletion.band == ""
    assert [line.style for line in deletion.lines] == ["map"]


def test_readings_show_the_classes_that_lead_in_the_end_and_those_that_led_before() -> None:
    explanation = stand_in(layers=5)
    (chart,) = readings(explanation.layers, CLASSES)
    assert len(chart.lines) == MOST_CLASSES
    order = np.argsort(-explanation.layers[-1].probabilities)
    assert [line.name for line in chart.lines[:3]] == [CLASSES[label] for label in order[:3]]
    assert chart.lines[0].value == f"{100 * explanation.probabilities.max():.1f} %"
    assert [layer for layer, _ in chart.marks] == [1, 2, 3, 4, 5]
    x, y = places(chart.lines[0].path)[-1]
    assert x == pytest.approx(chart.marks[-1][1], abs=0.06)
    assert y == pytest.approx(HEIGHT * (1 - explanation.probabilities.max()), abs=0.06)
    assert chart.alt.startswith(f"Probability after layer 1, 2, 3, 4, 5: {CLASSES[order[0]]} ")


def test_without_a_head_or_layers_there_is_nothing_to_read() -> None:
    assert readings(stand_in(classes=()).layers, ()) == ()
    assert readings((), CLASSES) == ()


def test_every_head_has_a_dot_at_its_distance() -> None:
    distances = np.array([[10, 40], [95, 70], [30, np.nan]], np.float32)
    (chart,) = distance_chart(distances)
    assert [tick.text for tick in chart.upward] == ["0", "20", "40", "60", "80", "100"]
    assert [(dot.layer, dot.head) for dot in chart.dots] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
    assert chart.dots[2].y == pytest.approx(HEIGHT * 0.05, abs=0.06)
    assert chart.dots[2].x == WIDTH / 2
    assert chart.dots[2].label == "layer 2, head 1: 95 pixels"
    assert "from 10 to 40 pixels among the heads of layer 1, from 30 to 30 in layer 3" in chart.alt
    assert distance_chart(np.zeros((0, 0), np.float32)) == ()
    assert inside(distance_chart(np.zeros((1, 1), np.float32))[0])


def inside(chart: Chart) -> bool:
    return all(0 <= dot.x <= WIDTH and 0 <= dot.y <= HEIGHT for dot in chart.dots)


def test_deep_models_name_every_second_layer() -> None:
    (chart,) = distance_chart(np.ones((24, 2), np.float32))
    assert [tick.text for tick in chart.across] == [str(layer) for layer in range(1, 25, 2)]
