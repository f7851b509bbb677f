"""The page: whole, safe, small, and telling what a colleague would ask."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded
from tests.data.reader import Reader
from tests.errors import raises
from tests.evaluation.test_accuracy import given_as
from tests.runs.report.stories import album, answers_to, evaluation_of, measured, story_of, whole_story
from vitral.data.samples import Item, Samples
from vitral.runs.report.pictures import PictureGrid, PictureRow
from vitral.runs.report.report import CONTENTS, MAX_CLASSES, Report, page, write_report

GRID = PictureGrid(
    ("image", "input"), (PictureRow("a<b>.jpg", ("data:image/png;base64,AA", "data:image/png;base64,BB")),)
)


def read(story: Report) -> Reader:
    return Reader(page(story))


def graphics(reader: Reader) -> list[str]:
    return [attributes["aria-label"] for tag, attributes in reader.tags if tag == "svg" and "role" in attributes]


def test_a_judged_run_tells_what_a_colleague_would_ask(tmp_path: Path) -> None:
    story = whole_story(tmp_path)
    assert story.evaluation is not None
    text = read(story).text
    assert f"{100 * story.evaluation.accuracy.top1:.1f}%" in text
    for told in (
        "of 60 val images", "95% CI", "vitral train photos", '"seed": 0', "Ti/16",
        "a quick one", "12 min 34 s", "3.0 \u00d7 10¹⁵", "1.5 GB", "5.7 million", "3 images/s", "train images",
        "cat as", "vitral evaluate runs/photos-2 photos", "Expected calibration error", "step 40 of 40",
    ):  # fmt: skip
        assert told in text, told


def test_every_picture_has_words(tmp_path: Path) -> None:
    reader = read(whole_story(tmp_path))
    assert reader.images()
    assert all(re.fullmatch(r"\d\.jpg, labeled \w+, predicted \w+", image["alt"]) for image in reader.images())
    told = graphics(reader)
    assert [label.split(" ")[0] for label in told] == ["loss", "accuracy", "rate", "Calibration:", "Confusion"]


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page(whole_story(tmp_path))
    assert not re.search(r"https?://|<script|<link|@import|url\(", text)


def test_every_section_is_listed_in_the_contents_and_nothing_else(tmp_path: Path) -> None:
    story = whole_story(tmp_path)
    for told in (story, story_of(story.samples), story._replace(masked=GRID, augmented=GRID)):
        reader = read(told)
        sections = [attributes["id"] for tag, attributes in reader.tags if tag == "section"]
        links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
        assert links == [f"#{section}" for section in sections]
        assert sections == [section for section in CONTENTS if section in sections], "in order"
    assert {"masked", "augmented", "curves", "mistakes"} <= set(sections)


def test_every_picture_can_be_enlarged(tmp_path: Path) -> None:
    text = page(whole_story(tmp_path)._replace(masked=GRID))
    pictures, enlarged = text.count("<img "), re.findall(r'<details class="zoom"[^>]*><summary[^>]*><img ', text)
    assert pictures == len(enlarged) > 2
    assert 'alt="a&lt;b&gt;.jpg, input"' in text


ODD = '<b onclick="x">&\'\n\u202e</title></svg>'


def test_nothing_handed_in_can_become_part_of_the_page(tmp_path: Path) -> None:
    story = whole_story(tmp_path, (ODD, f"{ODD} too", "\udcff"))
    odd = story._replace(
        title=ODD, command=ODD, recipe=ODD, notes=[ODD], summary=[(ODD, ODD)], environment=[(ODD, ODD)],
        next=[(ODD, ODD)], metrics=[{**line, ODD: 1.0} for line in story.metrics],
    )  # fmt: skip
    text = page(odd._replace(samples=_renamed(odd, tmp_path)))
    text.encode()  # no broken unicode
    reader = Reader(text)
    assert not any("onclick" in attributes for _, attributes in reader.tags)
    assert "\u202e" not in text
    assert "\\udcff" in reader.text


def _renamed(story: Report, folder: Path) -> Samples:
    """The samples with a file of an odd name."""
    name = "<img src=x onerror='x'>.jpg"
    (folder / name).write_bytes((folder / "0.jpg").read_bytes())
    items = tuple(Item(name, item.label, item.split) for item in story.samples.items)
    return Samples(ODD, story.samples.classes, items, story.samples.store, (ODD,))


@pytest.mark.parametrize(("count", "shown"), [(2, 2), (10, 10), (100, MAX_CLASSES)])
def test_any_number_of_classes_is_shown_as_can_be_read(tmp_path: Path, count: int, shown: int) -> None:
    reader = read(whole_story(tmp_path, tuple(f"class {number}" for number in range(count)), each=20))
    assert any(label.startswith("Confusion matrix") for label in graphics(reader)) == (count <= 30)
    rows = [tag for tag, attributes in reader.tags if attributes.get("class") in ("bar", "bar none")]
    assert len(rows) == shown
    assert (f"and {count - shown} more" in reader.text) == (count > shown)


def test_a_model_without_mistakes_has_a_page(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"))
    perfect = given_as([(item.label, item.label) for item in samples.of("val")], 2)
    reader = read(story_of(samples)._replace(evaluation=evaluation_of(samples, perfect)))
    assert "100.0%" in reader.text
    assert "Confusion matrix" not in reader.text
    assert reader.images() == []


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    reader = read(story_of(album(tmp_path, ("cat", "dog"))))
    assert "nothing measured yet" in reader.text
    assert "step 0 of 40" in reader.text
    assert graphics(reader) == []
    assert reader.images() == []


def test_a_run_under_way_shows_its_curves(tmp_path: Path) -> None:
    story = story_of(album(tmp_path, ("cat", "dog")))._replace(metrics=measured(epochs=2))
    reader = read(story)
    assert [label.split(" ")[0] for label in graphics(reader)] == ["loss", "accuracy", "rate"]
    assert "step 20 of 40" in reader.text
    assert "bold line" not in reader.text  # too few steps for a moving average
    assert "bold line" in read(story._replace(metrics=measured(epochs=8, each=20))).text


def test_a_task_without_classes_has_a_page(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat",))
    bare = Samples(samples.where, (), samples.items, samples.store)
    lines = [{name: value for name, value in line.items() if name != "accuracy"} for line in measured()]
    text = page(story_of(bare)._replace(status="done", metrics=lines))
    reader = Reader(text)
    assert "val loss" in reader.text
    assert ">classes<" not in text
    assert [label.split(" ")[0] for label in graphics(reader)] == ["loss", "rate"]


def test_a_page_full_of_noise_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = album(tmp_path, tuple(f"class {number}" for number in range(30)), each=20)
    for number in range(7):
        noisy = Image.fromarray(rng.integers(0, 256, (127, 127, 3)).astype(np.uint8))
        (tmp_path / f"{number}.jpg").write_bytes(encoded(noisy, "PNG"))
    evaluation = evaluation_of(samples, answers_to(samples))
    text = page(story_of(samples)._replace(metrics=measured(300, 20), evaluation=evaluation))
    assert 1_500_000 < len(text.encode()) < 3_000_000
    assert len(Reader(text).images()) == 24


def test_writing_leaves_one_whole_file(tmp_path: Path) -> None:
    story = whole_story(tmp_path / "photos")
    (tmp_path / "report.html").write_text("the one before")
    write_report(tmp_path / "report.html", story)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(story)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["photos", "report.html"]
    missing = tmp_path / "nowhere" / "report.html"
    with raises("file.write_failed", missing):
        write_report(missing, story)
