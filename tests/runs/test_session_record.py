"""The record of a run belongs to its checkpoint: what is missing or changed in it is found when the run is resumed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.errors import raises
from tests.runs.small import SETTINGS, photos
from tests.weights.damage import reseal_as
from vitral.core.config import parse_settings
from vitral.core.manifest import read_manifest_as, write_manifest
from vitral.runs.train import resume, train
from vitral.training.checkpoints.checkpoint import CheckpointManifest, checkpoint_path, latest_step, open_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose checkpoints after every step are kept."""
    home = tmp_path_factory.mktemp("record")
    settings = (*SETTINGS, "checkpoints.every_seconds=0", "checkpoints.keep=50")
    train(str(photos(home / "photos")), settings=parse_settings([*settings]), out=str(home / "run"))
    return home / "run"


@pytest.fixture
def stopped(trained: Path, tmp_path: Path) -> Path:
    """The same run as if it had been killed some steps before its end."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    steps = sorted(path for path in (run / "checkpoints").iterdir())
    for path in steps[len(steps) // 2 + 1 :]:
        shutil.rmtree(path)
    for name in ("best", "last"):
        shutil.rmtree(run / name)
    return run


def lines(run: Path) -> list[bytes]:
    return (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def change(index: int, new: bytes) -> Callable[[Path], object]:
    def apply(run: Path) -> None:
        found = lines(run)
        found[index] = new
        (run / "metrics.jsonl").write_bytes(b"".join(found))

    return apply


def swap(run: Path) -> None:
    first, second, *rest = lines(run)
    (run / "metrics.jsonl").write_bytes(b"".join([second, first, *rest]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a deleted line": change(0, b""),
    "a changed digit": lambda run: (run / "metrics.jsonl").write_bytes(lines(run)[0].replace(b"1", b"2")),
    "a cut file": lambda run: os.truncate(run / "metrics.jsonl", 10),
    "an empty file": lambda run: os.truncate(run / "metrics.jsonl", 0),
    "no file": lambda run: (run / "metrics.jsonl").unlink(),
    "lines in another order": swap,
    "a line that is no JSON": change(0, b"\xff\xfe\n"),
    "a line in front": lambda run: (run / "metrics.jsonl").write_bytes(lines(run)[0] + b"".join(lines(run))),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_lines_that_are_gone_or_changed_are_refused(stopped: Path, damage: Callable[[Path], object]) -> None:
    damage(stopped)
    with raises("run.log_changed", stopped / "metrics.jsonl"):
        resume(stopped)


def test_lines_of_later_steps_are_dropped_whatever_they_hold(trained: Path, stopped: Path) -> None:
    with (stopped / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "epoch": 1.0, "split": "val", "loss": 0.0, "accuracy": 1.0}\nnonsense\n{"half')
    resume(stopped)
    assert lines(stopped) == lines(trained)
    weights = (stopped / "best/model.safetensors").read_bytes()
    assert weights == (trained / "best/model.safetensors").read_bytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("content", [b"nonsense\n", b'{"step": 1}\n\xff\n', b"", None])
def test_damaged_times_do_not_stop_a_run(trained: Path, stopped: Path, content: bytes | None) -> None:
    if content is None:
        (stopped / "times.jsonl").unlink()
        (stopped / "times.jsonl").mkdir()
    else:
        (stopped / "times.jsonl").write_bytes(content)
    resume(stopped)
    assert lines(stopped) == lines(trained)


@pytest.mark.parametrize("group", ["optimizer", "average", "task"])
@pytest.mark.parametrize("format", ["new", "old"])
def test_a_manifest_without_a_group_of_tensors_is_refused(stopped: Path, group: str, format: str) -> None:
    folder = checkpoint_path(stopped / "checkpoints", latest_step(stopped / "checkpoints"))
    if format == "old":
        as_format_2(folder)
    manifest = read_manifest_as(CheckpointManifest, folder)
    kept = tuple(entry for entry in manifest.files if entry.name != f"{group}.safetensors")
    assert len(kept) == len(manifest.files) - 1
    if format == "new" and not open_checkpoint(folder).load().tensors[group]:
        pytest.skip("this recipe has no average")
    write_manifest(folder, manifest.model_copy(update={"files": kept}))
    with raises("weights.corrupt", folder / "manifest.json", group):
        open_checkpoint(folder)


def as_format_2(folder: Path) -> None:
    """Write the state of a checkpoint as it was before it had the digest of the metrics."""
    state = json.loads((folder / "state.json").read_bytes())
    del state["metrics"], state["tensors"]
    (folder / "state.json").write_text(json.dumps(state | {"format": 2}))
    reseal_as(CheckpointManifest, folder)


def test_a_checkpoint_without_a_digest_resumes_as_it_did(trained: Path, stopped: Path) -> None:
    for folder in (stopped / "checkpoints").iterdir():
        as_format_2(folder)
    resume(stopped)
    assert lines(stopped) == lines(trained)


LINKS = (".lock", "metrics.jsonl", "results.csv", "results.csv.tmp", "report.html", "report.html.tmp", "times.jsonl")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LINKS)
def test_nothing_is_written_through_a_link_in_a_run(stopped: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "precious"
    content = (stopped / name).read_bytes() if name == "metrics.jsonl" else b"mine"
    victim.write_bytes(content)
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(victim)
    if name == ".lock":
        with raises("file.lock_failed", stopped):
            resume(stopped)
    else:  # lines of later steps are cut into a new file
        resume(stopped)
    assert victim.read_bytes() == content


def test_a_link_in_place_of_the_checkpoints_is_refused(stopped: Path, tmp_path: Path) -> None:
    (stopped / "checkpoints").rename(tmp_path / "elsewhere")
    (stopped / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = sorted(path.name for path in (tmp_path / "elsewhere").iterdir())
    with raises("file.is_link", stopped / "checkpoints"):
        resume(stopped)
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == before
