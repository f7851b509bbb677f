"""The features of a run without labels: measured, shown, and without any effect on the run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from tests.runs.small import begin, content, photos, recipe_and_samples
from vitral.data.samples import Item
from vitral.runs.callbacks import features as module
from vitral.runs.callbacks.events import Evaluated, RunEvent
from vitral.runs.callbacks.features import FeatureMonitor, find_labels, spread_evenly
from vitral.runs.session import Session
from vitral.training.metrics import read_metrics
from vitral.weights.load import load

CPU = torch.device("cpu")
TASK = "task=masked_patches"
NAMES = {"knn_accuracy", "feature_spread", "effective_rank"}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Photos in one folder, without classes."""
    photos(tmp_path / "classes")
    (tmp_path / "plain").mkdir()
    for number, path in enumerate(sorted((tmp_path / "classes").rglob("*.png"))):
        path.replace(tmp_path / "plain" / f"{number}.png")
    return tmp_path


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [dict(line.values) for line in read_metrics(folder) if line.split == "val"]


def test_the_accuracy_is_that_of_scikit_learn_on_the_features_of_the_bundle(home: Path) -> None:
    run = begin(home, TASK)
    found = evaluations(run.path)[-1]
    assert set(found) >= NAMES
    monitor = FeatureMonitor(run.recipe, run.samples, CPU)
    model, bundle = load(run.folder.last)
    files = [home / "photos" / item.name for item in (*monitor.searched, *monitor.asked)]
    images = torch.cat([bundle.preprocessing.tensor(path.read_bytes(), "") for path in files])
    with torch.no_grad():
        rows = model.forward_pooled(images).double().numpy()
    labels = np.array([path.parent.name for path in files])
    count = len(monitor.searched)
    vote = KNeighborsClassifier(20, metric="cosine", algorithm="brute").fit(rows[:count], labels[:count])
    assert found["knn_accuracy"] == pytest.approx((vote.predict(rows[count:]) == labels[count:]).mean())
    unit = rows[count:] / np.linalg.norm(rows[count:], axis=1, keepdims=True)
    spread = unit.std(axis=0).mean() * np.sqrt(rows.shape[1])
    assert found["feature_spread"] == pytest.approx(spread, rel=1e-3)
    values = np.linalg.eigvalsh(np.cov(unit.T))
    assert found["effective_rank"] == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-3)


def test_a_run_ends_in_the_same_weights_with_and_without(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = begin(home, TASK, "drop_path_rate=0.2")

    def nothing(self: Session, step: int) -> dict[str, float]:
        return {}

    monkeypatch.setattr(Session, "_measure_features", nothing)
    alone = begin(home, TASK, "drop_path_rate=0.2", out="alone")
    for name in ("best/model.safetensors", "last/model.safetensors"):
        assert (watched.path / name).read_bytes() == (alone.path / name).read_bytes()
    lines = [[(line.step, line.split) for line in read_metrics(each.path)] for each in (watched, alone)]
    assert lines[0] == lines[1]


def test_a_run_that_stops_after_each_step_measures_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runs.small import StopAfterEachStep
    from vitral.runs.train import resume

    whole = begin(home, TASK, "epochs=1")
    with monkeypatch.context() as patch:
        patch.setattr("vitral.runs.train.SignalHandler", StopAfterEachStep)
        run = begin(home, TASK, "epochs=1", out="stopped")
        while run.signal:
            run = resume(run.path)
    assert content(run.path) == content(whole.path)


def test_the_best_weights_do_not_depend_on_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accuracy rises and falls as it likes: the best step is that of the lowest loss."""
    values = {5: 0.9, 10: 0.1, 15: 0.5}
    measure = FeatureMonitor.metrics
    monkeypatch.setattr(
        FeatureMonitor, "metrics", lambda self, found: measure(self, found) | {"knn_accuracy": values[found.step]}
    )
    best: list[int] = []

    def watch(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.is_best:
            best.append(event.step)

    run = begin(home, TASK, callbacks=[watch])
    lines = [line for line in read_metrics(run.path) if line.split == "val"]
    assert [line.values["knn_accuracy"] for line in lines] == [0.9, 0.1, 0.5]
    assert best[-1] == min(lines, key=lambda line: line.values["loss"]).step


def test_a_task_that_compares_views_is_measured_on_plain_images(home: Path) -> None:
    small = ("task.head.outputs=16", "task.head.hidden=8", "task.head.bottleneck=4")
    run = begin(home, "task=dino", "images.views=two", *small, "epochs=1")
    assert set(evaluations(run.path)[-1]) >= NAMES
    assert '<section id="map">' in run.report.read_text()


def test_images_without_classes_have_no_accuracy(plain: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitral")
    run = begin(plain, TASK, data=str(plain / "plain"))
    assert NAMES & set(evaluations(run.path)[-1]) == NAMES - {"knn_accuracy"}
    assert "no labels" in caplog.text


def test_labels_of_folders_are_said_not_to_be_trained_on(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitral")
    begin(home, TASK, "epochs=1")
    assert "the labels (2 classes) are not used for training" in caplog.text


def test_a_run_with_labels_measures_nothing(home: Path) -> None:
    assert not NAMES & set(evaluations(begin(home, "epochs=1").path)[-1])


def test_labels_are_those_of_the_folders_and_none_where_the_folders_are_no_classes(home: Path, plain: Path) -> None:
    recipe, samples = recipe_and_samples(home / "photos", TASK)
    found = find_labels(recipe, samples, samples.of("train"), samples.of("val"))
    assert found is not None
    assert [found.classes[label] for label in found.asked] == [item.name.split("/")[-2] for item in samples.of("val")]
    recipe, samples = recipe_and_samples(plain / "plain", TASK)
    assert find_labels(recipe, samples, samples.of("train"), samples.of("val")) is None


def test_features_that_are_not_finite_have_no_numbers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = FeatureMonitor(*recipe_and_samples(home / "photos", TASK), CPU)
    rows = np.full((3, 4), np.nan, np.float32)
    assert monitor.metrics(module.FeatureSnapshot(0, rows, rows)) == {}


@pytest.mark.parametrize(("count", "most", "kept"), [(3, 5, [0, 1, 2]), (9, 3, [0, 4, 8]), (1, 5, [0]), (0, 5, [])])
def test_images_are_taken_from_the_first_to_the_last(count: int, most: int, kept: list[int]) -> None:
    items = [Item(str(number), 0, "train") for number in range(count)]
    assert [int(item.name) for item in spread_evenly(items, most)] == kept
