"""What the model looked at: the right pictures, the right patches."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from tests.evaluation.test_accuracy import answers_of
from tests.models.variants import VARIANTS, small
from tests.runs.report.stories import album, judgment_of, story_of
from tests.weights.bundles import loaded
from vitral.explanation.explanation import ModelView
from vitral.html.charts import HEIGHT
from vitral.models import LinearHead
from vitral.runs.report.attention import MEASURED, SIDE, attended, draw_distances, overlaid
from vitral.runs.report.page import page
from vitral.weights.load import Loaded

ANSWERS = answers_of([[3, 0], [9, 0], [0, 1], [0, 2]], [0, 0, 0, 1])  # right, right and surer, wrong, right


def model_of() -> Loaded:
    return loaded(small(depth=2, head=LinearHead(num_classes=2)))


def picture_of(address: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(b64decode(address.partition(",")[2]))))


def test_the_surest_right_answer_of_each_class_and_every_wrong_one_are_shown(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    found = attended(model_of(), samples, judgment_of(samples, ANSWERS))
    items = samples.of("val")
    assert [(each.name, each.label, each.given) for each in found.right] == [
        (items[1].name, "cat", "cat"),
        (items[3].name, "dog", "dog"),
    ]
    assert [(each.name, each.label, each.given) for each in found.wrong] == [(items[2].name, "cat", "dog")]
    for glance in (*found.right, *found.wrong):
        plain, covered = picture_of(glance.picture), picture_of(glance.overlay)
        assert plain.shape == covered.shape
        assert max(plain.shape) == SIDE
        assert (plain != covered).any()


def test_distances_are_of_at_most_so_many_images_and_every_head_has_a_dot(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    found = attended(model_of(), samples, judgment_of(samples, ANSWERS))
    assert found.figures.images == len(samples.of("val")) <= MEASURED
    (chart,) = found.distances
    assert len(chart.dots) == 2 * 2  # layers, heads


def test_a_dot_stands_as_high_as_its_head_looks_far() -> None:
    none = np.empty((0, 0, 0, 0), np.float32)
    far = np.array([[10.0, 50.0]], np.float32)
    (chart,) = draw_distances(ModelView(none, none.reshape(0), none, far, 3))
    assert [dot.y for dot in chart.dots] == [HEIGHT * 0.8, 0.0]
    assert "over 3 images: 10.0 to 50.0 pixels in the first layer" in chart.alt
    assert draw_distances(ModelView(none, none.reshape(0), none, far[:0], 0)) == ()


def test_the_patch_that_counts_most_is_the_brightest() -> None:
    gray = np.full((32, 32, 1), 60, np.uint8)
    covered = overlaid(gray, np.array([[0, 1], [0, 0]], np.float32))
    quarters = [covered[:56, :56], covered[:56, 56:], covered[56:, :56], covered[56:, 56:]]
    assert np.argmax([quarter.mean() for quarter in quarters]) == 1
    assert all((quarter == quarter[0, 0]).all() for quarter in quarters)


def test_a_model_without_attention_shows_what_it_has(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    judgment = judgment_of(samples, ANSWERS)
    resnet = next(config for name, config in VARIANTS.items() if config.kind == "resnet")
    found = attended(loaded(resnet.model_copy(update={"head": LinearHead(num_classes=2)})), samples, judgment)
    assert (found.right, found.wrong, found.distances, found.figures.positions) == ((), (), (), "")
    assert found.figures.filters


def test_the_page_shows_what_was_looked_at(tmp_path: Path) -> None:
    samples = album(tmp_path, ("<cat>", "dog"), each=2)
    judgment = judgment_of(samples, ANSWERS)
    seen = attended(model_of(), samples, judgment)
    text = page(story_of(samples)._replace(status="done", judgment=judgment, attended=seen))
    assert "What it looked at" in text
    assert "The model itself" in text
    assert text.count('class="twin"') == len(seen.right) + len(seen.wrong)
    assert "<cat>" not in text
    assert "What it looked at" not in page(story_of(samples)._replace(judgment=judgment))
