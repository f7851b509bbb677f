"""The page as text: whole, safe, small, and readable without eyes. How it behaves is tested in a browser."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.reader import Reader
from tests.errors import raises
from tests.explanation.stand_in import stand_in, stand_in_resnet
from vitral.explanation.explanation import Explanation
from vitral.explanation.page import page as module
from vitral.explanation.page.page import notebook, page, write_page
from vitral.html.text import percent
from vitral.models.base import Grid


def read(*explanations: Explanation) -> Reader:
    return Reader(page(explanations))


def headings(reader: Reader) -> list[str]:
    return [attributes["id"] for tag, attributes in reader.tags if tag == "section" and "id" in attributes]


ALL = ["answer-0", "maps-0", "attention-0", "depth-0", "features-0", "model", "steps-0"]


def test_a_page_tells_what_a_visitor_would_ask() -> None:
    explanation = stand_in()
    reader = read(explanation)
    assert headings(reader) == ALL
    for told in (
        "B/16 on insects", "bee.jpg", f"{100 * explanation.probabilities.max():.1f}%", "96x128 pixels, 6x8 patches",
        "Relevance is the most faithful", "better than random", "The maps are about", "leads from layer",
        "28 principal components", "Mean cosine similarity", "Mean attention distance over 32 images",
        "The picture is cut into patches", "length of the first", "0.4213", "This is a stand-in", "vitral 0.1.0",
    ):  # fmt: skip
        assert told in reader.text, told


def test_every_picture_has_words() -> None:
    reader = read(stand_in(registers=1))
    assert len(reader.images()) > 30
    assert all(image["alt"] for image in reader.images())
    for tag, attributes in reader.tags:
        if tag == "canvas":
            assert attributes.get("aria-label") or attributes["aria-hidden"] == "true"
        if tag == "svg" and attributes["class"] != "plot":
            assert attributes.get("aria-label") or attributes["aria-hidden"] == "true"
        if attributes.get("role") == "application":
            assert attributes["aria-label"]
            assert attributes["tabindex"] == "0"
    labels = [attributes["aria-label"] for tag, attributes in reader.tags if tag == "svg" and "role" in attributes]
    assert len(labels) == 2 * 4 + 2  # two curves a map, the readings, the distances
    assert all(re.search(r"\d", label) for label in labels)


def test_a_page_needs_nothing_from_elsewhere() -> None:
    text = page([stand_in()])
    assert not re.search(r"https?:|@import|<script[^>]*src|<iframe|<object|<base", text)
    assert set(re.findall(r"url\((\w+):", text)) == {"data"}
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'" in text


ODD = '<b onclick="x">&\'\n\u202e</title></svg></script><script>alert(1)</script>{{ 7 * 7 }}'


def test_nothing_handed_in_can_become_part_of_the_page() -> None:
    text = page([odd()])
    text.encode()  # no broken unicode
    reader = Reader(text)
    assert not any("onclick" in attributes for _, attributes in reader.tags)
    assert [attributes.get("id", "") for tag, attributes in reader.tags if tag == "script"] == ["colors", "data-0", ""]
    assert "\u202e" not in text
    assert "{{ 7 * 7 }}" in reader.text


def odd() -> Explanation:
    """An explanation in which every name is hostile."""
    explanation = stand_in(classes=(ODD, f"{ODD} too", "\udcff"), name=ODD)
    steps = tuple(
        step._replace(title=ODD, equation=ODD, text=ODD, shape=ODD, numbers=((ODD, 1.0),)) for step in explanation.steps
    )
    return replace(explanation, model_name=ODD, target=ODD, steps=steps, unavailable=(ODD,))


def test_a_model_without_a_head_has_a_page() -> None:
    reader = read(stand_in(classes=()))
    assert headings(reader) == [name for name in ALL if name != "depth-0"]
    assert "This model has no head" in reader.text
    assert "Left out, as there is nothing to show: prediction, faithfulness test, logit lens." in reader.text


def test_a_resnet_has_a_page_that_says_what_it_lacks() -> None:
    reader = read(stand_in_resnet())
    assert headings(reader) == ["answer-0", "maps-0", "features-0", "steps-0"]
    assert "A ResNet has no attention" in reader.text
    assert "Left out, as there is nothing to show: attention, logit lens" in reader.text


def test_a_model_of_which_nothing_is_known_has_a_page() -> None:
    none = np.zeros((0, 0), np.float32)
    bare = stand_in_resnet()
    bare = replace(
        bare, maps={}, faithfulness=stand_in(classes=()).faithfulness, feature_colors=np.zeros((0, 0, 3), np.float32),
        similarity=none, steps=(), unavailable=(),
    )  # fmt: skip
    assert headings(read(bare)) == ["answer-0"]


def test_several_images_share_what_belongs_to_the_model() -> None:
    one, two = stand_in(seed=0), stand_in(seed=1, name="ant.jpg")
    reader = read(one, two)
    assert headings(reader).count("model") == 1
    assert {"answer-0", "answer-1", "steps-0", "steps-1"} <= set(headings(reader))
    buttons = [attributes for tag, attributes in reader.tags if tag == "button" and "data-show" in attributes]
    assert [button["aria-pressed"] for button in buttons] == ["true", "false"]
    assert len(page([one, two])) - len(page([one])) < len(page([one]))


def test_thumbnails_carry_the_prediction() -> None:
    one, two = stand_in(seed=0), replace(stand_in(seed=1, name="ant.jpg"), probabilities=np.eye(7, dtype=np.float32)[0])
    found = re.findall(r'<button [^>]*data-show="\d"[^>]*>(.*?)</button>', page([one, two]), re.S)
    captions = [re.findall(r'<span class="under[^>]*>(.*?)</span>', button) for button in found]
    assert captions == [["bees", percent(float(one.probabilities.max())), "bee.jpg"], ["ants", "100.0%", "ant.jpg"]]
    nameless = [stand_in(classes=()), stand_in(classes=(), name="ant.jpg")]
    assert page(nameless).count('<span class="under') == 2


@pytest.mark.slow
def test_the_page_of_one_image_of_a_large_model_stays_below_5_mb() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3)).astype(np.uint8)
    explanation = stand_in(Grid(16, 16), layers=12, heads=12, registers=4, picture=noise)
    text = page([explanation])
    assert len(text.encode()) < 5_000_000
    assert "16x16 patches are averaged into 8x8 cells" in Reader(text).text


def test_attention_of_many_images_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = stand_in()
    whole = len(page([explanation]))
    monkeypatch.setattr(module, "MAX_ATTENTION_IN_ALL", 12_000)
    text = page([explanation] * 3)
    assert "6x8 patches are averaged into 3x4 cells" in text
    assert len(text) < 3 * whole


def test_writing_leaves_one_whole_file(tmp_path: Path) -> None:
    explanation = stand_in()
    path = tmp_path / "page.html"
    path.write_text("the one before")
    write_page(path, [explanation])
    assert path.read_text(encoding="utf-8") == page([explanation])
    assert list(tmp_path.iterdir()) == [path]
    missing = tmp_path / "nowhere" / "page.html"
    with raises("file.write_failed", missing):
        write_page(missing, [explanation])


def test_a_page_that_is_slow_to_open_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vitral")
    write_page(tmp_path / "page.html", [stand_in()])
    assert caplog.messages == []
    monkeypatch.setattr(module, "LARGE", 1000)
    write_page(tmp_path / "page.html", [stand_in()])
    assert len(caplog.messages) == 1


def test_a_notebook_gets_the_page_in_a_frame() -> None:
    explanation = odd()
    reader = Reader(notebook(explanation))
    [(tag, attributes)] = reader.tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == page([explanation])
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["title"].startswith("<b onclick")
