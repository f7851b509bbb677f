"""What the model looked at: the right pictures, the right patches."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from tests.evaluation.test_accuracy import answers_of
from tests.models.variants import VARIANTS, small
from tests.runs.report.stories import album, evaluation_of, story_of
from tests.weights.bundles import loaded
from vitral.models import LinearHead
from vitral.runs.report.attention import MAX_DISTANCE_IMAGES, SIDE, attention_section, overlay_map
from vitral.runs.report.report import page
from vitral.weights.load import LoadedModel

ANSWERS = answers_of([[3, 0], [9, 0], [0, 1], [0, 2]], [0, 0, 0, 1])  # right, right and surer, wrong, right


def model_of() -> LoadedModel:
    return loaded(small(depth=2, head=LinearHead(num_classes=2)))


def picture_of(address: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(b64decode(address.partition(",")[2]))))


def test_the_surest_right_answer_of_each_class_and_every_wrong_one_are_shown(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    found = attention_section(model_of(), samples, evaluation_of(samples, ANSWERS))
    items = samples.of("val")
    assert [(each.name, each.label, each.prediction) for each in found.right] == [
        (items[1].name, "cat", "cat"),
        (items[3].name, "dog", "dog"),
    ]
    assert [(each.name, each.label, each.prediction) for each in found.wrong] == [(items[2].name, "cat", "dog")]
    for glance in (*found.right, *found.wrong):
        plain, covered = picture_of(glance.image), picture_of(glance.overlay)
        assert plain.shape == covered.shape
        assert max(plain.shape) == SIDE
        assert (plain != covered).any()


def test_distances_are_of_at_most_so_many_images_and_every_head_has_a_dot(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    found = attention_section(model_of(), samples, evaluation_of(samples, ANSWERS))
    assert len(samples.of("val")) <= MAX_DISTANCE_IMAGES
    chart = found.model.distances
    assert chart is not None
    assert f"over {len(samples.of('val'))} images" in chart.alt
    assert len(chart.dots) == 2 * 2  # layers, heads


def test_the_patch_that_counts_most_is_the_brightest() -> None:
    gray = np.full((32, 32, 1), 60, np.uint8)
    covered = overlay_map(gray, np.array([[0, 1], [0, 0]], np.float32))
    half = SIDE // 2
    quarters = [covered[:half, :half], covered[:half, half:], covered[half:, :half], covered[half:, half:]]
    assert np.argmax([quarter.mean() for quarter in quarters]) == 1
    assert all((quarter == quarter[0, 0]).all() for quarter in quarters)


def test_a_model_without_attention_shows_what_it_has(tmp_path: Path) -> None:
    samples = album(tmp_path, ("cat", "dog"), each=2)
    evaluation = evaluation_of(samples, ANSWERS)
    resnet = next(config for name, config in VARIANTS.items() if config.kind == "resnet")
    found = attention_section(
        loaded(resnet.model_copy(update={"head": LinearHead(num_classes=2)})), samples, evaluation
    )
    assert (found.right, found.wrong, found.model.distances, found.model.positions) == ((), (), None, "")
    assert found.model.filters


def test_the_page_shows_what_was_looked_at(tmp_path: Path) -> None:
    samples = album(tmp_path, ("<cat>", "dog"), each=2)
    evaluation = evaluation_of(samples, ANSWERS)
    seen = attention_section(model_of(), samples, evaluation)
    text = page(story_of(samples)._replace(status="done", evaluation=evaluation, attention=seen))
    assert "Relevance maps" in text
    assert "The model itself" in text
    assert text.count('class="twin"') == len(seen.right) + len(seen.wrong)
    assert "<cat>" not in text
    assert "Relevance maps" not in page(story_of(samples)._replace(evaluation=evaluation))
