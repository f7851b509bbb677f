"""Sentences that say what the numbers say."""

import re

import numpy as np

from tests.explanation.stand_in import CLASSES, stand_in, stand_in_resnet
from vitral.explanation.explanation import Curve, LayerView, MapScore
from vitral.explanation.page.text import (
    describe_colors,
    describe_crop,
    describe_filters,
    describe_logit_lens,
    describe_map,
    describe_model,
    describe_positions,
    describe_precision,
    describe_score,
    describe_scores,
    format_equation,
    prefix_names,
)
from vitral.models.base import Grid, Layout


def test_the_model_is_told_in_a_line() -> None:
    assert describe_model(stand_in(registers=2)) == "96x128 pixels, 6x8 patches + a class token + 2 registers, 3 layers"
    assert describe_model(stand_in_resnet()) == "a ResNet: 64x64 pixels, 2 residual units, a 4x4 feature map"
    assert prefix_names(Layout(1, 2, Grid(2, 2))) == ["class token", "register 1", "register 2"]


def test_the_part_that_was_seen_is_told() -> None:
    photo = stand_in().photo
    assert re.findall(r"\d+", describe_crop(photo)) == ["67", "100", "96", "128"]
    assert re.findall(r"\d+", describe_crop(photo._replace(width=1.0))) == ["96", "128"]


def described(values: list[list[float]]) -> str:
    return describe_map("Rollout", np.array(values, np.float32))


def test_a_map_is_told_by_its_brightest_patches() -> None:
    values = np.ones((4, 5), np.float32)
    values[2, 3], values[0, 1], values[3, 0] = 11, 10, 3
    text = described(values.tolist())
    assert "row 3, column 4; row 1, column 2; row 4, column 1" in text
    assert re.findall(r"\d+", text)[6:] == ["2", "20", "51"]
    assert "1 patch is negative" in described([[1, -0.5], [0, 0]])
    assert "100%" in described([[1, 0], [0, 0]])
    assert "%" not in described([[0, 0], [0, 0]])


def test_a_trial_is_told_with_the_spread_of_chance() -> None:
    shares = np.array([0, 1], np.float32)

    def flat(gone: float, back: float) -> Curve:
        return Curve(shares, np.full(2, gone, np.float32), np.full(2, back, np.float32))

    text = describe_score(MapScore(4.0, 3.0, 3.5), flat(0.2, 0.8), [flat(0.4, 0.5), flat(0.6, 0.5)])
    assert text.startswith("Better than random: score +3.5.")
    assert re.findall(r"\d\.\d\d", text) == ["0.20", "0.50", "0.14", "0.80", "0.50", "0.00"]
    worse = describe_score(MapScore(-4.0, -3.0, -3.5), flat(0, 0), [flat(0, 0)] * 2)
    assert worse.startswith("Worse than random: score -3.5.")
    unclear = describe_score(MapScore(0.0, 1.0, 0.5), flat(0, 0), [flat(0, 0)] * 2)
    assert unclear.startswith("Not clearly better than random: score +0.5.")


def test_the_most_faithful_map_is_named_and_so_are_the_doubtful_ones() -> None:
    good, better, poor = MapScore(3, 3, 3.1), MapScore(7, 7, 7.2), MapScore(9, 0.5, 4.0)
    text = describe_scores({"rollout": good, "relevance": better, "occlusion": poor})
    assert text.startswith("Relevance ")
    assert text.endswith(": Occlusion.")
    assert "Occlusion" not in describe_scores({"rollout": good, "relevance": better})
    assert describe_scores({"occlusion": poor._replace(combined=9.0), "rollout": good}).startswith("Attention rollout")
    assert describe_scores({"occlusion": poor}).startswith("No map")
    assert describe_scores({}) == ""


def test_maps_without_a_clear_difference_are_not_told_apart() -> None:
    first, close, far = MapScore(6, 6, 6.0), MapScore(5, 5, 4.1), MapScore(3, 3, 3.9)
    text = describe_scores({"rollout": close, "occlusion": far, "relevance": first})
    assert text.startswith("Relevance cannot be told apart from Attention rollout:")
    assert "most faithful" not in text
    assert "Occlusion" not in text
    doubtful = close._replace(insertion=1.0)  # not clearly better than random, and not clearly worse than the best
    text = describe_scores({"relevance": first, "rollout": doubtful})
    assert text.startswith("Relevance cannot be told apart from Attention rollout:")
    assert text.endswith("Not clearly better than random: Attention rollout.")
    assert describe_scores({"relevance": first, "occlusion": far}).startswith("Relevance is the most faithful")


def views(*winners: int) -> list[LayerView]:
    none = np.zeros((0, 0, 0), np.float32)
    return [
        LayerView(2 * place + 1, none, none.ravel(), np.eye(7, dtype=np.float32)[winner])
        for place, winner in enumerate(winners)
    ]


def test_the_layer_from_which_the_answer_stands_is_told() -> None:
    assert describe_logit_lens(views(1, 0, 1, 1), CLASSES) == "bees leads from layer 5 on; after layer 3 it was ants."
    assert describe_logit_lens(views(2, 2, 2), CLASSES) == "wasps leads after every layer shown."
    assert describe_logit_lens(views(0, 1), CLASSES) == "bees leads from layer 3 on; after layer 1 it was ants."


def test_calm_colors_are_told_from_noise() -> None:
    calm = np.zeros((4, 4, 3), np.float32)
    calm[:2] = 1
    assert "; 83% of neighbors" in describe_colors(calm)  # all but 4 of 24 pairs
    assert "100%" in describe_colors(np.zeros((1, 1, 3), np.float32))


def test_positions_are_told_by_how_near_they_are() -> None:
    rows, columns = np.indices((3, 3)).reshape(2, 9)
    steps = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
    same = (rows[:, None] == rows) | (columns[:, None] == columns)
    values = np.where(steps == 1, 0.5, np.where(same, 0.25, -0.125)).astype(np.float32).reshape(3, 3, 3, 3)
    text = describe_positions(values, Grid(3, 3), Grid(3, 3))
    assert re.findall(r"-?\d\.\d+", text) == ["0.50", "0.25", "-0.12"]
    assert "2x2 of 3 x 3" in describe_positions(values, Grid(2, 2), Grid(3, 3))
    assert not re.search(r"\d", describe_positions(np.ones((1, 1, 1, 1), np.float32), Grid(1, 1), Grid(1, 1)))


def test_filters_and_fineness_are_told() -> None:
    ratios = np.array([0.5, 0.25], np.float32)
    patches, small = (describe_filters(np.zeros((2, side, side, 3), np.float32), ratios) for side in (16, 3))
    assert re.findall(r"[\d.]*\d", patches) == ["2", "75.0", "50.0"]
    assert patches.startswith(f"{small} ")  # filters of 3x3 pixels have no room for stripes
    explanation = stand_in()
    assert " 15 steps" in describe_precision(explanation, Grid(6, 8), 15)
    assert "6x8 patches are averaged into 3x4 cells" in describe_precision(explanation, Grid(3, 4), 15)


def test_an_equation_has_low_and_high_letters_and_no_markup_of_its_own() -> None:
    assert str(format_equation("z_0 = [x_class; x_1 E] + E_pos")) == (
        "z<sub>0</sub> = [x<sub>class</sub>; x<sub>1</sub> E] + E<sub>pos</sub>"
    )
    assert str(format_equation("z'_l = z_l-1")) == "z&#39;<sub>l</sub> = z<sub>l-1</sub>"
    assert str(format_equation("y^0 -> <b>")) == "y<sup>0</sup> → &lt;b&gt;"
