"""Sentences that say what the numbers say."""

import numpy as np
import pytest

from tests.explanation.stand_in import CLASSES, stand_in, stand_in_resnet
from vitral.explanation.explanation import Curve, HeatMap, LayerView, MapKind
from vitral.explanation.faithfulness import Verdict
from vitral.explanation.page.text import (
    belief,
    colors_told,
    crop_told,
    equation,
    filters_told,
    fineness_told,
    map_told,
    model_told,
    percent,
    positions_told,
    prefix_names,
    trial_told,
    turn_told,
)
from vitral.models.base import Grid, Layout


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0 %"), (0.9712, "97.1 %"), (1, "100.0 %"), (0.0004, "< 0.1 %"), (0.0006, "0.1 %")]
)
def test_a_share_that_is_there_is_never_called_nothing(share: float, text: str) -> None:
    assert percent(share) == text


def test_the_model_is_told_in_a_line() -> None:
    assert model_told(stand_in(registers=2)) == "96x128 pixels, 6x8 patches + a class token + 2 registers, 3 layers"
    assert model_told(stand_in_resnet()) == "a ResNet: 64x64 pixels, 2 residual units, a map of 4x4 places"
    assert prefix_names(Layout(1, 2, Grid(2, 2))) == ["class token", "register 1", "register 2"]


def test_the_part_that_was_seen_is_told() -> None:
    photo = stand_in().photo
    assert crop_told(photo) == (
        "The frame marks what the model saw: 67 % of the width and 100 % of the height, at 96 x 128 pixels."
    )
    assert crop_told(photo._replace(width=1.0)) == "The model saw all of it, at 96 x 128 pixels."


def heat(values: list[list[float]]) -> HeatMap:
    return HeatMap("rollout", "Rollout", "", np.array(values, np.float32))


def test_a_map_is_told_by_its_brightest_patches() -> None:
    values = np.ones((4, 5), np.float32)
    values[2, 3], values[0, 1], values[3, 0] = 11, 10, 3
    assert map_told(heat(values.tolist())) == (
        "Rollout: brightest at row 3, column 4; row 1, column 2; row 4, column 1. "
        "The brightest 2 patches of 20 hold 51 % of it."
    )
    assert "1 patch is blue: below nothing." in map_told(heat([[1, -0.5], [0, 0]]))
    assert "The brightest patch holds 100 % of it." in map_told(heat([[1, 0], [0, 0]]))
    assert "hold" not in map_told(heat([[0, 0], [0, 0]]))


def test_a_trial_is_told_with_the_spread_of_chance() -> None:
    shares = np.array([0, 1], np.float32)

    def flat(gone: float, back: float) -> Curve:
        return Curve(shares, np.full(2, gone, np.float32), np.full(2, back, np.float32))

    told = trial_told(Verdict("rollout", 4.0, 3.0, 3.5), flat(0.2, 0.8), [flat(0.4, 0.5), flat(0.6, 0.5)])
    assert told.startswith("Better than chance, by 3.5 times the spread of random maps.")
    assert "keeps 0.20 of probability on average (random 0.50 ± 0.14, less is better)" in told
    assert "it has 0.80 (random 0.50 ± 0.00, more is better)" in told
    assert trial_told(Verdict("rollout", -4.0, -3.0, -3.5), flat(0, 0), [flat(0, 0)] * 2).startswith(
        "Worse than chance, by 3.5 times"
    )
    assert "Not clearly better than chance: +0.5 times" in trial_told(
        Verdict("rollout", 0.0, 1.0, 0.5), flat(0, 0), [flat(0, 0)] * 2
    )


def test_the_map_to_believe_is_named_and_the_others_are_warned_of() -> None:
    titles: dict[MapKind, str] = {"rollout": "Rollout", "relevance": "Relevance", "occlusion": "Occlusion"}
    good, better, poor = (
        Verdict("rollout", 3, 3, 3.1), Verdict("relevance", 5, 5, 5.2), Verdict("occlusion", 9, 0.5, 4.0)
    )  # fmt: skip
    told = belief([good, better, poor], titles)
    assert told.startswith("Believe Relevance first")
    assert told.endswith("Do not lean on Occlusion: not clearly better than chance on this image.")
    assert "lean" not in belief([good, better], titles)
    assert belief([poor._replace(both=9.0), good], titles).startswith("Believe Rollout first")
    assert belief([poor], titles).startswith("No map does clearly better")


def views(*winners: int) -> list[LayerView]:
    none = np.zeros((0, 0, 0), np.float32)
    return [
        LayerView(2 * place + 1, none, none.ravel(), np.eye(7, dtype=np.float32)[winner])
        for place, winner in enumerate(winners)
    ]


def test_the_layer_from_which_the_answer_stands_is_told() -> None:
    assert turn_told(views(1, 0, 1, 1), CLASSES) == "bees leads from layer 5 on; after layer 3 it was ants."
    assert turn_told(views(2, 2, 2), CLASSES) == "wasps leads after every layer shown."
    assert turn_told(views(0, 1), CLASSES) == "bees leads from layer 3 on; after layer 1 it was ants."


def test_calm_colors_are_told_from_noise() -> None:
    calm = np.zeros((4, 4, 3), np.float32)
    calm[:2] = 1
    assert "; 83 % of neighbors" in colors_told(calm)  # all but 4 of 24 pairs
    assert "100 %" in colors_told(np.zeros((1, 1, 3), np.float32))


def test_positions_are_told_by_how_near_they_are() -> None:
    rows, columns = np.indices((3, 3)).reshape(2, 9)
    steps = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
    same = (rows[:, None] == rows) | (columns[:, None] == columns)
    values = np.where(steps == 1, 0.5, np.where(same, 0.25, -0.125)).astype(np.float32).reshape(3, 3, 3, 3)
    told = positions_told(values, Grid(3, 3), Grid(3, 3))
    assert (
        told == "Mean cosine similarity: direct neighbors 0.50, others in the same row or column 0.25, the rest -0.12."
    )
    assert positions_told(values, Grid(2, 2), Grid(3, 3)).endswith(
        " Of 3 x 3 positions, 2x2 have a tile, which shows 3x3 of them."
    )
    assert positions_told(np.ones((1, 1, 1, 1), np.float32), Grid(1, 1), Grid(1, 1)) == "One position alone."


def test_filters_and_fineness_are_told() -> None:
    assert filters_told(np.array([0.5, 0.25], np.float32)) == (
        "2 principal components: the first holds 50.0 % of the variance, all together 75.0 %."
    )
    explanation = stand_in()
    assert fineness_told(explanation, Grid(6, 8), 15) == (
        "Weights are kept in 15 steps between nothing and the most of each row."
    )
    assert "6x8 patches are shown as 3x4 cells" in fineness_told(explanation, Grid(3, 4), 15)


def test_an_equation_has_low_and_high_letters_and_no_markup_of_its_own() -> None:
    assert str(equation("z_0 = [x_class; x_1 E] + E_pos")) == (
        "z<sub>0</sub> = [x<sub>class</sub>; x<sub>1</sub> E] + E<sub>pos</sub>"
    )
    assert str(equation("z'_l = z_l-1")) == "z&#39;<sub>l</sub> = z<sub>l-1</sub>"
    assert str(equation("y^0 -> <b>")) == "y<sup>0</sup> → &lt;b&gt;"
