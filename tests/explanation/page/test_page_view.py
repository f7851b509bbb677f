"""What a template is told of an image and of the model."""

import json

import numpy as np

from tests.explanation.stand_in import CLASSES, stand_in, stand_in_resnet
from vitral.explanation.explanation import Faithfulness, Stage
from vitral.explanation.faithfulness import verdicts
from vitral.explanation.page.page import MOST_STAGES, figures_of, script_json, view_of

PLENTY = 100_000_000


def test_the_surest_answers_have_bars_and_the_explained_one_is_marked() -> None:
    explanation = stand_in()._replace(target="moths")
    view = view_of(explanation, PLENTY)
    order = np.argsort(-explanation.probabilities)
    assert [bar.name for bar in view.bars] == [CLASSES[label] for label in order[:5]]
    assert view.bars[0].width == 100 * float(explanation.probabilities.max())
    assert [bar.name for bar in view.target] == ["moths"]


def test_maps_stand_in_the_order_in_which_to_believe_them() -> None:
    explanation = stand_in()
    cards = view_of(explanation, PLENTY).cards
    found = {each.kind: each for each in verdicts(explanation.faithfulness)}
    kinds = [explanation.maps[card.place].kind for card in cards]
    assert kinds == ["relevance", "occlusion", "rollout", "attention"]
    assert [card.standing for card in cards] == [found[kind].standing for kind in kinds]
    assert all(len(card.charts) == 2 for card in cards)


def test_maps_that_were_not_tried_keep_their_order_and_promise_nothing() -> None:
    view = view_of(stand_in()._replace(faithfulness=Faithfulness()), PLENTY)
    assert [card.place for card in view.cards] == [0, 1, 2, 3]
    assert {(card.standing, card.verdict, card.charts) for card in view.cards} == {("", "", ())}
    assert view.belief == ""


def test_the_script_is_told_all_it_needs() -> None:
    explanation = stand_in(registers=1)
    data = json.loads(view_of(explanation, PLENTY).data)
    assert data["grid"] == data["cells"] == [6, 8]
    assert data["prefix"] == ["class token", "register 1"]
    assert [layer["layer"] for layer in data["layers"]] == [1, 2, 3]
    assert [len(layer["distance"]) for layer in data["layers"]] == [2, 2, 2]
    values = np.array(data["maps"][3]["values"])
    truth = explanation.maps[3].values.ravel()
    np.testing.assert_allclose(values, truth / np.abs(truth).max(), atol=1e-4)


def test_a_map_of_nothing_is_not_divided_by_it() -> None:
    explanation = stand_in()
    empty = explanation.maps[0]._replace(values=np.zeros((6, 8), np.float32))
    data = json.loads(view_of(explanation._replace(maps=(empty,)), PLENTY).data)
    assert set(data["maps"][0]["values"]) == {0}


def test_nothing_in_the_json_ends_its_script() -> None:
    text = str(script_json({"name": "</script><!--<script>&\u2028"}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>&\u2028"}


def test_pictures_of_a_long_walk_through_stay_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (384, 384, 3)).astype(np.uint8)
    stages = tuple(Stage(f"step {number}", "", "", "", (), (noise, noise)) for number in range(15))
    steps = view_of(stand_in()._replace(stages=stages), PLENTY).steps
    assert [len(step.pictures) for step in steps] == [2] * 15
    assert sum(len(picture) for step in steps for picture in step.pictures) <= MOST_STAGES


def test_the_model_shows_what_it_has() -> None:
    figures = figures_of(stand_in().model)
    assert len(figures.filters) == 28
    assert figures.filters[0][1] == "50.0 %"
    assert figures.positions.startswith("data:image/png")
    assert len(figures.distances) == 1
    bare = figures_of(stand_in_resnet().model)
    assert (bare.filters, bare.filters_told, bare.positions, bare.positions_told, bare.distances) == (
        (),
        "",
        "",
        "",
        (),
    )
