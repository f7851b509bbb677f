"""Which predictions become labels."""

from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import striped_model
from tests.inference.album import listed, photos, spoilt
from vitral.inference.predictor import Predictor
from vitral.runs.selftraining.pseudo_labels import PseudoLabel, PseudoLabeling, choose, predict_labels


def labels(*found: tuple[str, float]) -> list[PseudoLabel]:
    (image,) = listed([Path("x.jpg")])
    return [PseudoLabel(image, label, confidence) for label, confidence in found]


def shown(found: list[PseudoLabel]) -> list[tuple[str, float]]:
    return [(each.label, each.confidence) for each in found]


FOUND = labels(("a", 0.95), ("b", 0.5), ("a", 0.99), ("a", 0.92), ("b", 0.9), ("a", 0.99))


def test_confident_labels_are_chosen_and_balanced_by_the_most_confident() -> None:
    everything = choose(FOUND, PseudoLabeling(threshold=0.9, per_class="all"), classes=2)
    assert shown(everything) == [("a", 0.95), ("a", 0.99), ("a", 0.92), ("b", 0.9), ("a", 0.99)]
    mean = choose(FOUND, PseudoLabeling(threshold=0.9), classes=2)  # 5 labels, so 3 of each class
    assert shown(mean) == [("a", 0.95), ("a", 0.99), ("b", 0.9), ("a", 0.99)]
    one = choose(FOUND, PseudoLabeling(threshold=0, per_class=1), classes=2)  # of equals the first
    assert [FOUND.index(each) for each in one] == [2, 4]


def test_no_label_that_is_confident_enough_is_an_error_that_says_how_confident_the_teacher_is() -> None:
    with raises("data.no_pseudo_labels", "0.990", "0.995"):
        choose(FOUND, PseudoLabeling(threshold=0.995), classes=2)
    with raises("config.out_of_range", "threshold"):
        PseudoLabeling(threshold=1.5)


def test_labels_are_the_predictions_of_the_model(tmp_path: Path) -> None:
    model, paths = striped_model(), photos(tmp_path, 5)
    found = predict_labels(Predictor(model, engine="eager"), listed(paths), skip_bad=False)
    images = torch.cat([model.bundle.preprocessing.tensor(path.read_bytes(), "") for path in paths])
    with torch.no_grad():
        chances = model.model(images).softmax(dim=1)
    assert [each.label for each in found] == [model.bundle.classes[index] for index in chances.argmax(dim=1)]
    assert [each.confidence for each in found] == pytest.approx(chances.amax(dim=1).tolist(), abs=1e-5)


def test_bad_images_are_an_error_unless_they_are_skipped(tmp_path: Path) -> None:
    bad = spoilt(tmp_path)
    images = listed([*bad[:2], *photos(tmp_path, 3), *bad[2:]])
    with raises("data.bad_files", "4 of 7"):
        predict_labels(Predictor(striped_model(), engine="eager"), images, skip_bad=False)
    found = predict_labels(Predictor(striped_model(), engine="eager"), images, skip_bad=True)
    assert [each.image for each in found] == images[2:5]
