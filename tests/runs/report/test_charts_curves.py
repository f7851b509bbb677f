"""Curves: every measurement in its place, and few enough of them to draw."""

import re

import numpy as np
import pytest

from tests.runs.report.stories import measured
from vitral.html.charts import HEIGHT, WIDTH, Chart
from vitral.runs.report.charts import (
    MAX_BANDS,
    MAX_DOTS,
    MAX_POINTS,
    MetricLine,
    MetricPoint,
    downsample,
    metric_charts,
    smooth,
)


def by_title(lines: list[MetricLine]) -> dict[str, Chart]:
    return {chart.title: chart for chart in metric_charts(lines)}


def places(path: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"[-.\de]+", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_nothing_measured_draws_nothing() -> None:
    assert metric_charts([]) == []


def test_each_thing_measured_has_a_chart_in_order() -> None:
    assert [chart.title for chart in metric_charts(measured())] == ["loss", "accuracy", "learning rate"]
    odd: list[MetricLine] = [{"step": 1, "epoch": 0.1, "split": "train", "rate": 1e-3, "error": 0.2, "loss": 1.0}]
    assert [chart.title for chart in metric_charts(odd)] == ["loss", "error", "learning rate"]


def test_points_stand_where_their_numbers_say() -> None:
    lines: list[MetricLine] = [
        {"step": 1, "epoch": 1.0, "split": "val", "loss": 2.0},
        {"step": 2, "epoch": 2.0, "split": "val", "loss": 1.0},
        {"step": 4, "epoch": 4.0, "split": "val", "loss": 0.0},
    ]
    (chart,) = metric_charts(lines)
    truth = [(WIDTH / 4, 0.0), (WIDTH / 2, HEIGHT / 2), (WIDTH, HEIGHT)]
    assert [(dot.x, dot.y) for dot in chart.dots] == truth
    assert [places(line.path) for line in chart.lines] == [truth]
    assert [dot.label for dot in chart.dots] == [
        "val, epoch 1: 2.00", "val, epoch 2: 1.00", "val, epoch 4: 0"
    ]  # fmt: skip
    assert chart.y_ticks[0].position == HEIGHT
    assert chart.alt == "loss by epoch: val from 2.00 to 0"
    assert chart.caption == "Lowest on val at epoch 4: 0; last 0."
    (once,) = metric_charts(lines[:1])
    assert once.caption == "Val at epoch 1: 2.00."


def test_accuracy_reads_in_percent_and_tells_its_best() -> None:
    chart = by_title(measured())["accuracy"]
    assert all(tick.label.endswith("%") for tick in chart.y_ticks)
    best = max(line["accuracy"] for line in measured() if line["split"] == "val")
    assert chart.caption.startswith("Highest on val at epoch ")
    assert f"{100 * best:.1f}%" in chart.caption
    assert [entry.name for entry in chart.legend] == ["train", "val"]


def test_val_and_test_are_told_apart() -> None:
    lines = [*measured(), {"step": 40, "epoch": 4.0, "split": "test", "loss": 0.9, "accuracy": 0.5}]
    chart = by_title(lines)["loss"]
    assert [dot.style for dot in chart.dots] == ["val"] * 4 + ["test"]
    assert [entry.name for entry in chart.legend] == ["train", "val", "test"]


def test_a_smooth_curve_is_the_mean_of_its_neighbors() -> None:
    values = np.random.default_rng(0).normal(size=230)
    reach = 230 // 50
    truth = [values[max(0, place - reach) : place + reach + 1].mean() for place in range(230)]
    assert smooth(list(values)) == pytest.approx(truth)
    assert smooth([3.0, 1.0]) == [3.0, 1.0]
    assert smooth([]) == []


def test_of_many_spots_the_extremes_stay() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    values[1234], values[777] = 99, -99
    spots = [MetricPoint(step, step / 100, float(value)) for step, value in enumerate(values)]
    shown = downsample(spots)
    assert len(shown) <= MAX_POINTS
    assert {99.0, -99.0} <= {spot.value for spot in shown}
    assert shown == sorted(shown)
    assert downsample(spots[:50]) == spots[:50]


def test_a_long_run_is_drawn_with_few_pieces() -> None:
    loss = by_title(measured(epochs=300, each=20))["loss"]
    assert all(len(places(line.path)) <= MAX_POINTS + 1 for line in loss.lines)
    assert len(loss.bars) == MAX_BANDS
    assert len(loss.dots) == MAX_DOTS
    assert loss.dots[-1].label.startswith("val, epoch 300:")
    assert loss.bars[0].label.startswith("train, epoch 5, steps 1 to 100: ")
    assert loss.bars[-1].x + loss.bars[-1].width == pytest.approx(WIDTH)


def test_what_is_not_finite_is_left_out() -> None:
    lines = [*measured(), {"step": 41, "epoch": 4.1, "split": "train", "loss": float("inf"), "rate": 1e-3}]
    assert "inf" not in str(by_title(lines)["loss"])
    assert metric_charts([{"step": 1, "epoch": 0.1, "split": "train", "loss": float("nan")}]) == []


def test_the_rate_is_drawn_as_it_was_set() -> None:
    lines: list[MetricLine] = [
        {"step": step, "epoch": step / 10, "split": "train", "loss": 1.0, "rate": rate}
        for step, rate in enumerate([0.5e-3, 1e-3, 0.0], start=1)
    ]
    chart = by_title(lines)["learning rate"]
    (line,) = chart.lines
    assert [y for _, y in places(line.path)] == [HEIGHT / 2, 0.0, HEIGHT]
    assert chart.caption == "Highest at epoch 0.2: 0.00100."


@pytest.mark.parametrize("spike", [0, 70, 159])
def test_no_curve_leaves_its_axes(spike: int) -> None:
    lines = measured(epochs=8, each=20)  # enough that the bold line is smoother than the steps
    training = [place for place, line in enumerate(lines) if line["split"] == "train"]
    lines[training[spike]] = {**lines[training[spike]], "loss": 30.0, "accuracy": 0.0}
    for chart in metric_charts(lines):
        spots = [spot for line in chart.lines for spot in places(line.path)] + [(dot.x, dot.y) for dot in chart.dots]
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in spots), chart.title


def test_a_loss_with_a_spike_has_a_logarithmic_axis_on_which_the_rest_is_seen() -> None:
    lines: list[MetricLine] = [
        {"step": step, "epoch": float(step), "split": "val", "loss": 100.0 if step == 1 else 1.0 / step}
        for step in range(1, 11)
    ]
    chart = by_title(lines)["loss"]
    assert chart.y_label == "log scale"
    heights = {float(dot.label.split(": ")[1]): dot.y for dot in chart.dots}
    assert heights[100.0] == 0
    assert heights[0.1] == HEIGHT
    assert heights[0.5] == pytest.approx(HEIGHT * (2 - np.log10(0.5)) / 3, abs=0.1)
    assert {tick.label: tick.position for tick in chart.y_ticks}["10"] == pytest.approx(HEIGHT / 3, abs=0.1)
    assert not by_title(measured())["loss"].y_label
