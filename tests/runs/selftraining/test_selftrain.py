"""Self-training with tiny runs: what each round trains on, and the same bytes after any stop."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import vitral
from tests.errors import raises
from tests.runs.similarity.test_cluster import rows
from tests.runs.small import SETTINGS, content, photos
from vitral.core.config import parse_settings
from vitral.models.vit import Vit
from vitral.runs.selftraining import selftrain as module
from vitral.runs.selftraining.pseudo_labels import PseudoLabeling
from vitral.runs.selftraining.selftrain import SelfTraining, resume_selftraining

LABELING = PseudoLabeling(threshold=0.0, per_class="mean")
SHORT = parse_settings([*SETTINGS, "epochs=1", "threads=1"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labeled photos, and a pile of others beside them, one of which is a copy of a validation image."""
    home = tmp_path_factory.mktemp("data")
    photos(home / "photos", {"train": 6, "val": 4})
    photos(home / "other", {"train": 16})
    pile = home / "pile"
    pile.mkdir()
    for path in sorted((home / "other").rglob("*.png")):
        if int(path.stem) >= 6:  # the others have the bytes of labeled ones
            shutil.copy(path, pile / f"{path.parent.name}-{path.name}")
    shutil.copy(home / "photos/val/dark/0.png", pile / "seen.png")
    return home


def begin(data: Path, out: Path, **more: Any) -> SelfTraining:
    given: dict[str, Any] = {"rounds": 2, "labeling": LABELING, "recipe": "small_hundreds", "settings": SHORT} | more
    return vitral.selftrain(data / "photos", data / "pile", out=out, **given)


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> SelfTraining:
    return begin(data, tmp_path_factory.mktemp("done") / "whole", student={"drop_path_rate": 0.1})


def test_each_student_trains_on_labeled_images_and_on_what_its_teacher_labeled(data: Path, done: SelfTraining) -> None:
    assert [(each.round, each.labeled) for each in done.rounds] == [(0, 12), (1, 12), (2, 12)]
    assert done.rounds[0].pseudo_labeled == 0
    for each in done.rounds[1:]:
        table = rows(done.folder.manifest(each.round))
        labeled = [row for row in table if not row["confidence"]]
        assert sorted(row["path"] for row in labeled) == sorted(map(str, (data / "photos").rglob("*.png")))
        assert all(Path(row["path"]).parts[-3:-1] == (row["split"], row["label"]) for row in labeled)
        chosen = [row for row in table if row["confidence"]]
        assert len(chosen) == each.pseudo_labeled == sum(each.per_class.values()) > 0
        assert max(each.per_class.values()) <= 10  # of 20 unlabeled images of two classes
        assert {row["split"] for row in chosen} == {"train"}
        assert not any(row["path"].endswith("seen.png") for row in chosen)  # it is a validation image
    assert done.student == done.path / "round-2"
    assert "accuracy" in done.rounds[2].metrics


def test_students_have_the_settings_of_the_teacher_but_for_their_own(done: SelfTraining) -> None:
    teacher, student = (vitral.load(done.folder.run(number).best).bundle.model for number in (0, 2))
    assert isinstance(teacher, Vit)
    assert isinstance(student, Vit)
    assert teacher.model_copy(update={"block": student.block}) == student
    assert (teacher.block.drop_path_rate, student.block.drop_path_rate) == (0.0, 0.1)


def test_a_self_training_that_is_killed_anywhere_ends_in_the_same_bytes(
    data: Path, done: SelfTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process ends here."""

    def kill_at(name: str, call: int) -> None:
        calls = 0
        own = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return own(*arguments)

        monkeypatch.setattr(module, name, counted)

    kill_at("train_request", 1)  # before the teacher
    with pytest.raises(Killed):
        begin(data, tmp_path / "run", student={"drop_path_rate": 0.1})
    for name, call in (("write_rows", 1), ("train_request", 1), ("_result", 2), ("choose", 1)):
        monkeypatch.undo()
        kill_at(name, call)
        with pytest.raises(Killed):
            resume_selftraining(tmp_path / "run")
    monkeypatch.undo()
    found = resume_selftraining(tmp_path / "run")
    assert found.rounds == done.rounds
    for number in range(3):
        assert content(found.folder.run(number).path) == content(done.folder.run(number).path)
    for number in (1, 2):
        assert found.folder.manifest(number).read_bytes() == done.folder.manifest(number).read_bytes()
    assert found.folder.results.read_bytes() == done.folder.results.read_bytes()
    assert resume_selftraining(tmp_path / "run").rounds == done.rounds  # nothing is left to do


def test_a_signal_saves_the_run_at_hand_and_names_the_command(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.runs.small import StopAfterEachStep

    with monkeypatch.context() as patch:
        patch.setattr("vitral.runs.train.SignalHandler", StopAfterEachStep)
        stopped = begin(data, tmp_path / "run", rounds=1)
    assert (stopped.signal, stopped.rounds) == (signal.SIGTERM, ())
    assert f"vitral selftrain --resume {tmp_path / 'run'}" in stopped.summary()
    assert len(resume_selftraining(tmp_path / "run").rounds) == 2


def test_what_cannot_be_done_is_refused_before_any_training(data: Path, tmp_path: Path) -> None:
    with raises("config.unsupported", "sample"):
        vitral.selftrain("sample", data / "pile", out=tmp_path / "a")
    with raises("config.unsupported", "masked_patches"):
        vitral.selftrain(data / "photos", data / "pile", task="masked_patches", out=tmp_path / "a")
    with raises("data.not_found", "nowhere"):
        vitral.selftrain(data / "photos", data / "nowhere", out=tmp_path / "a")
    with raises("config.unknown_field", "drop_pth"):
        begin(data, tmp_path / "a", student={"drop_pth": 0.1})
    assert not (tmp_path / "a").exists()
    with raises("config.not_found", "selftrain.json"):
        resume_selftraining(data / "photos")
    (tmp_path / "there").mkdir()
    with raises("config.path_exists"):
        begin(data, tmp_path / "there")
