"""The sections of the page, from an explanation and from a model."""

import json
from dataclasses import replace

import numpy as np

from tests.data.reader import Reader
from tests.explanation.stand_in import CLASSES, stand_in, stand_in_resnet
from vitral.explanation.explanation import Faithfulness, Step
from vitral.explanation.page.page import MAX_STEP_BYTES, image_section, model_section, page

PLENTY = 100_000_000


def test_the_surest_answers_have_bars_and_the_explained_one_is_marked() -> None:
    explanation = replace(stand_in(), target="moths")
    view = image_section(explanation, PLENTY)
    order = np.argsort(-explanation.probabilities)
    assert view.predictions == tuple((CLASSES[label], float(explanation.probabilities[label])) for label in order)
    text = Reader(page([explanation]))
    bars = [attributes for tag, attributes in text.tags if tag == "li" and attributes.get("class") == "explained"]
    assert len(bars) == ("moths" in [name for name, _ in view.predictions[:5]])


def test_maps_stand_in_the_order_in_which_to_believe_them() -> None:
    explanation = stand_in()
    cards = image_section(explanation, PLENTY).cards
    found = explanation.faithfulness.scores()
    kinds = [list(explanation.maps)[card.number] for card in cards]
    assert kinds == ["relevance", "occlusion", "rollout", "attention"]
    assert [card.verdict for card in cards] == [found[kind].verdict for kind in kinds]
    assert all(len(card.charts) == 2 for card in cards)


def test_maps_that_were_not_tried_keep_their_order_and_promise_nothing() -> None:
    view = image_section(replace(stand_in(), faithfulness=Faithfulness()), PLENTY)
    assert [card.number for card in view.cards] == [0, 1, 2, 3]
    assert {(card.verdict, card.score, card.charts) for card in view.cards} == {("", "", ())}
    assert view.verdict == ""


def test_the_script_is_told_all_it_needs() -> None:
    explanation = stand_in(registers=1)
    data = json.loads(image_section(explanation, PLENTY).data)
    assert data["grid"] == data["cells"] == [6, 8]
    assert data["prefix"] == ["class token", "register 1"]
    assert [layer["layer"] for layer in data["layers"]] == [1, 2, 3]
    assert [len(layer["distance"]) for layer in data["layers"]] == [2, 2, 2]
    values = np.array(data["maps"][3]["values"])
    truth = explanation.maps["occlusion"].ravel()
    np.testing.assert_allclose(values, truth / np.abs(truth).max(), atol=1e-4)


def test_a_map_of_nothing_is_not_divided_by_it() -> None:
    explanation = stand_in()
    empty = replace(explanation, maps={"rollout": np.zeros((6, 8), np.float32)})
    data = json.loads(image_section(empty, PLENTY).data)
    assert set(data["maps"][0]["values"]) == {0}


def test_pictures_of_a_long_walk_through_stay_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (384, 384, 3)).astype(np.uint8)
    steps = tuple(Step(f"step {number}", "", "", "", (), (noise, noise)) for number in range(15))
    images = image_section(replace(stand_in(), steps=steps), PLENTY).steps_images
    assert [len(each) for each in images] == [2] * 15
    assert sum(len(image) for each in images for image in each) <= MAX_STEP_BYTES


def test_the_model_shows_what_it_has() -> None:
    figures = model_section(stand_in().model)
    assert len(figures.filters) == 28
    assert figures.filters[0][1] == "50.0%"
    assert figures.positions.startswith("data:image/png")
    assert figures.distances is not None
    bare = model_section(stand_in_resnet().model)
    assert (bare.filters, bare.filters_text, bare.positions, bare.positions_text) == ((), "", "", "")
    assert bare.distances is None
