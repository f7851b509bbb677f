"""Checkpoints: whatever is done to them or to their writer, a whole one is found."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from pydantic import JsonValue

from tests.errors import raises
from tests.training.scenes import SCENES, Scene, fill, kill, until
from tests.training.states import identical, name, names, passed_over, raw, save_step, surviving, two
from vitral.core.storage import Storage
from vitral.data.loading.shared_memory import FORK
from vitral.training.checkpoints.checkpoint import find_newest, open_checkpoint, recover_drafts, save_checkpoint

ROOT = Path(__file__).parents[2]


def test_a_state_of_a_million_parameters_comes_back_to_the_bit(tmp_path: Path) -> None:
    tensors = {
        "model": {f"blocks.{number}.weight": torch.randn(500, 500) for number in range(4)},
        "optimizer": {"step": torch.tensor(3.0), "half": torch.randn(9).bfloat16(), "none": torch.empty(0, 2)},
        "random": {"cpu": torch.get_rng_state(), "seen": torch.tensor([2**62]), "done": torch.tensor(True)},
        "nothing": {},
    }
    state: JsonValue = {
        "epoch": 1,
        "rate": 0.1 + 0.2,
        "dice": 2**127,
        "best": None,
        "ü": ["a", 1e-320, False],
        "loss": float("inf"),
    }
    path = save_checkpoint(tmp_path / "c", 123_456_789, tensors, state, 1, None)
    assert path == tmp_path / "c/step-123456789"
    found = find_newest(tmp_path / "c")
    assert found.checkpoint == open_checkpoint(path)
    assert found.checkpoint.step == 123_456_789
    loaded = found.checkpoint.load()
    assert loaded.state == state
    assert identical(loaded.tensors, tensors)
    before = raw(tensors["model"]["blocks.0.weight"])
    loaded.tensors["model"]["blocks.0.weight"].zero_()
    assert raw(found.checkpoint.load().tensors["model"]["blocks.0.weight"]) == before


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert find_newest(tmp_path) == find_newest(tmp_path / "none") == (None, ())
    (tmp_path / "file").touch()
    unreadable = find_newest(tmp_path / "file")
    assert unreadable.checkpoint is None
    assert [why.split(":")[0] for why in unreadable.rejected] == [f"{tmp_path}/file"]
    recover_drafts(tmp_path / "none")


def test_only_names_that_save_gives_are_checkpoints(tmp_path: Path) -> None:
    path = two(tmp_path)
    for other in ("step-3", "step-000000003", "step-00000003.tmp-9", "best", "step-00000003x", "old-step-00000003"):
        shutil.copytree(path, tmp_path / other)
    assert surviving(tmp_path) == 2


def test_nothing_has_the_final_name_before_all_of_it_is_flushed(tmp_path: Path) -> None:
    told: list[str] = []
    save_step(tmp_path, 1, disk=Storage(told.append))
    steps = [step for step in told if not step.startswith("wrote")]
    draft = f"{name(1)}.tmp-{os.getpid()}"
    assert steps == [
        *(f"made {draft}", f"flushed {tmp_path.name}"),
        *("flushed model.safetensors", "flushed optimizer.safetensors", "flushed state.json"),
        *("flushed manifest.json", f"flushed {draft}"),
        *(f"renamed {draft} to {name(1)}", f"flushed {tmp_path.name}"),
    ]


def test_a_copy_under_the_name_of_another_step_is_found(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    shutil.copytree(tmp_path / name(1), tmp_path / name(2))
    assert passed_over(tmp_path).startswith(str(tmp_path / name(2)))
    with raises("weights.corrupt", tmp_path / name(2), "step 1"):
        open_checkpoint(tmp_path / name(2))


@pytest.mark.parametrize("file", ["state.json", "model.safetensors"])
def test_a_file_that_vanished_after_it_was_found_is_named(tmp_path: Path, file: str) -> None:
    checkpoint = open_checkpoint(save_step(tmp_path, 1))
    (checkpoint.path / file).unlink()
    with raises("weights.not_found", file):
        checkpoint.load()


def test_when_all_are_damaged_there_is_none_and_each_is_told(tmp_path: Path) -> None:
    two(tmp_path)
    for path in tmp_path.glob("*/manifest.json"):
        path.write_bytes(b"\xff{" + b"[" * 100_000)
    found = find_newest(tmp_path)
    assert found.checkpoint is None
    assert [why.split(":")[0] for why in found.rejected] == [f"{tmp_path / name(at)}/manifest.json" for at in (2, 1)]


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(1, None, [5]), (2, None, [4, 5]), (2, 1, [1, 4, 5]), (2, 5, [4, 5]), (9, 2, [1, 2, 3, 4, 5])],
)
def test_the_newest_and_the_best_are_kept(tmp_path: Path, keep: int, best: int | None, left: list[int]) -> None:
    for step in range(1, 6):
        save_step(tmp_path, step, keep, best)
    assert names(tmp_path) == [name(step) for step in left]
    assert surviving(tmp_path) == 5


def test_damaged_later_ones_do_not_crowd_out_what_is_saved_now(tmp_path: Path) -> None:
    for step in (1, 8, 9):
        save_step(tmp_path, step, keep=3)
    for step in (8, 9):
        (tmp_path / name(step) / "manifest.json").unlink()
    for step in (2, 3, 8):
        save_step(tmp_path, step, keep=2)
    assert names(tmp_path) == [name(step) for step in (3, 8, 9)]
    found = find_newest(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 8


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_kill_at_any_instant_loses_nothing(tmp_path: Path, scene: Scene) -> None:
    late = {None} if scene.step == 1 else set()  # the step that is saved twice may have no name until the sweep
    seen = set()
    for stop, folder in scene.folders(tmp_path):
        process = FORK.Process(target=until, args=(stop, kill, partial(scene.save, folder)))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert surviving(folder) in scene.allowed | late
        recover_drafts(folder)
        seen.add(surviving(folder))
        assert not list(tmp_path.rglob("*.tmp-*"))
        save_step(folder, 3, keep=1)
        assert surviving(folder) == 3
        assert names(folder) == [name(3)]
    assert seen == scene.allowed


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_disk_that_fills_at_any_instant_loses_nothing(tmp_path: Path, scene: Scene) -> None:
    for stop, folder in scene.folders(tmp_path):
        with raises("file.write_failed") as caught:
            until(stop, fill, partial(scene.save, folder))
        there = surviving(folder)
        assert there in scene.allowed
        assert there is None or str(folder / name(there)) in caught.value.message
        assert caught.value.exit_code == 1
        scene.save(folder)
        assert surviving(folder) == scene.step


def _save_for_ever(folder: Path) -> None:
    for step in range(10**6):
        save_step(folder, step)


@pytest.mark.slow
def test_a_kill_from_outside_at_random_instants_loses_nothing(tmp_path: Path) -> None:
    for attempt in range(12):
        folder = tmp_path / str(attempt)
        process = FORK.Process(target=_save_for_ever, args=(folder,))
        process.start()
        while not (folder / name(1)).exists():
            time.sleep(0.001)
        time.sleep(random.random() / 50)
        process.kill()
        process.join()
        step = surviving(folder)
        assert step is not None
        recover_drafts(folder)
        again = surviving(folder)
        assert again in {step, step + 1}
        assert all("tmp" not in left for left in names(folder))


def test_a_kill_during_the_sweep_loses_nothing(tmp_path: Path) -> None:
    for stop in range(12):
        folder = tmp_path / str(stop)
        save_step(folder, 1)
        for step in (2, 3):
            save_step(folder, step, 9)
            (folder / name(step)).rename(folder / f"{name(step)}.tmp-1")
        (folder / name(2)).with_name(f"{name(2)}.tmp-1").joinpath("state.json").unlink()
        process = FORK.Process(target=until, args=(stop, kill, partial(recover_drafts, folder)))
        process.start()
        process.join()
        assert surviving(folder) in {1, 3}
        recover_drafts(folder)
        assert names(folder) == [name(1), name(3)]
        assert surviving(folder) == 3
    assert process.exitcode == 0


def _limited(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    with raises("file.write_failed", folder / name(1), "ulimit -f") as caught:
        save_step(folder, 2)
    assert caught.value.where == f"{folder}/{name(2)}.tmp-{os.getpid()}/model.safetensors"
    assert names(folder) == [name(1)]


def test_a_limit_on_the_size_of_files_leaves_the_one_before(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    process = FORK.Process(target=_limited, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert surviving(tmp_path) == 1


FULL = """
import sys
from pathlib import Path
from tests.training.scenes import SCENES, Scene, fill, kill, until
from tests.training.states import names, save_step, surviving
from vitral.core.errors import VitralError
folder = Path(sys.argv[1])
step = 0
try:
    while True:
        step += 1
        save_step(folder, step, keep=99)
except VitralError as error:
    assert names(folder) == [f"step-{at:08}" for at in range(1, step)]
    assert surviving(folder) == step - 1 > 0
    print(error.code, error)
"""
MOUNT = 'mount -t tmpfs -o size=100k none "$1" && exec "$2" -c "$3" "$1"'


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, "", str(tmp_path)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*inside, "true", ""], capture_output=True, check=False).returncode
    ):
        pytest.skip("a small disk may not be mounted here")
    line = [*inside, sys.executable, FULL]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("file.write_failed ")
    assert str(tmp_path / "step-") in done.stdout


def test_a_folder_that_vanished_or_is_a_file_is_told(tmp_path: Path) -> None:
    with raises("file.write_failed", tmp_path / "gone/checkpoints"):
        save_step(tmp_path / "gone/checkpoints", 1)
    assert not (tmp_path / "gone").exists()
    (tmp_path / "file").touch()
    with raises("file.write_failed", tmp_path / "file"):
        save_step(tmp_path / "file", 1)


def _unprivileged(folder: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write everywhere
    with raises("file.write_failed", folder / name(1), "chmod"):
        save_step(folder, 2)


def test_a_read_only_folder_leaves_the_one_before() -> None:
    with TemporaryDirectory() as root:  # where any user may look
        folder = Path(root) / "c"
        save_step(folder, 1)
        for path in (Path(root), folder):
            path.chmod(0o555)
        process = FORK.Process(target=_unprivileged, args=(folder,))
        process.start()
        process.join()
        for path in (Path(root), folder):
            path.chmod(0o755)
        assert process.exitcode == 0
        assert surviving(folder) == 1
