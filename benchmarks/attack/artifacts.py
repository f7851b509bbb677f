"""Flipped, cut and missing bytes in bundles, exports, packs, feature caches and runs, noticed when they are used."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import vitral
from benchmarks.attack.case import CPU_SECONDS, Case
from benchmarks.attack.images import check
from benchmarks.photos import jpeg
from vitral.core.errors import DataError
from vitral.data.datasets.source import open_data
from vitral.runs.callbacks.events import RunEvent, Saved

EDITABLE = {"README.md"}  # which its owner may change
COSTS = {"times.jsonl"}  # logs of what was spent: damage does not matter
SETTINGS = {
    "image_size": 16, "model.stem": "patches", "model.stem.patch": 8, "model.width": 16, "model.depth": 2,
    "model.mixer.heads": 2, "batch_size": 4, "epochs": 3, "workers": 0, "eval_every": 1,
    "checkpoints.every_seconds": 0, "device": "cpu", "microbatches": 2, "model.block.drop_path_rate": 0.2,
    "task.mixing": "mixup", "average": "ema",
}  # fmt: skip
TRAINING = 10.0  # seconds of CPU that a resumed run may take: it trains to its end
KILL_AT = 4  # the checkpoint after which the run is killed
ENDS = ("last/model.safetensors", "best/model.safetensors")  # what a resumed run must end in


class Artefacts(NamedTuple):
    """One of each, made once."""

    photos: Path
    image: Path
    bundle: Path
    export: Path
    pack: Path
    cache: Path  # of features
    killed: Path  # a run that was killed halfway
    finished: Path  # the same run, undisturbed


def make_artefacts(home: Path) -> Artefacts:
    """Make one of each by the public API."""
    photos = make_photos(home / "photos")
    in_child(lambda: train(photos, home / "finished"))
    in_child(lambda: train(photos, home / "killed", kill_at=KILL_AT))
    in_child(lambda: shutil.copytree(home / "finished/best", home / "bundle"))
    in_child(lambda: vitral.export(home / "bundle", "torch", data=str(photos), out=str(home / "export")))
    in_child(lambda: vitral.pack(photos, home / "pack"))
    in_child(lambda: use_cache(home / "cache", recompute=True))
    return Artefacts(
        photos, photos / "val/one/0.jpg", home / "bundle", home / "export", home / "pack",
        home / "cache", home / "killed", home / "finished",
    )  # fmt: skip


def make_photos(folder: Path) -> Path:
    """A small set in folders of classes."""
    for split, count in (("train", 6), ("val", 3)):
        for label in ("one", "two"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                (folder / split / label / f"{number}.jpg").write_bytes(jpeg(24, 24, 2 * number + (label == "two")))
    return folder


def train(photos: Path, out: Path, kill_at: int = 0) -> None:
    saved = 0

    def kill(event: RunEvent) -> None:
        nonlocal saved
        saved += isinstance(event, Saved)
        if saved and saved == kill_at:
            os._exit(0)

    vitral.train(str(photos), recipe="small_hundreds", out=str(out), settings=SETTINGS, callbacks=[kill])


def in_child(call: Callable[[], object]) -> None:
    """Run in a forked process, so that this one never runs torch: its threads do not survive a fork."""
    child = os.fork()
    if not child:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("an artefact could not be made")


def damaged(source: Path, seed: list[int]) -> Callable[[Path], Path]:
    """A copy with one random fault in one random file: a flipped bit, a cut, zeros, or no file at all."""

    def make(folder: Path) -> Path:
        copy = folder / source.name
        shutil.copytree(source, copy)
        draw = np.random.default_rng(seed)
        files = sorted(
            path for path in copy.rglob("*") if path.is_file() and path.name not in EDITABLE | COSTS | {".lock"}
        )
        file = files[int(draw.integers(len(files)))]
        data = bytearray(file.read_bytes())
        fault = int(draw.integers(6))
        if fault == 0 or not data:
            file.unlink()
        elif fault == 1:
            file.write_bytes(data[: int(draw.integers(len(data)))])
        else:
            data[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
            file.write_bytes(data)
        return copy

    return make


def use_bundle(folder: Path, image: Path) -> object:
    return list(vitral.predict(folder, image, engine="eager", strict=True))


def use_export(folder: Path, image: Path) -> object:
    return list(vitral.predict(folder, image, strict=True))


def use_runner(folder: Path, image: Path) -> object:
    """The script of an export, which needs no Vitral."""
    line = [sys.executable, "-P", str(folder / "run.py"), str(image)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(done.stderr.strip().rpartition("\n")[2], code="held.runner")
    return done.stdout


def use_pack(folder: Path) -> object:
    return check(folder)


def read_pack(folder: Path, whole: Path) -> None:
    """Read every image of a pack as training does. Only bytes that no image has may be damaged."""
    damaged, sound = open_data(str(folder)), open_data(str(whole))
    same = [damaged.read(item) == sound.read(item) for item in damaged.items]
    if not all(same) or (damaged.items, damaged.classes) != (sound.items, sound.classes):
        raise RuntimeError("another image or label")
    raise DataError("every image is the same", code="held.same_bytes")


def use_cache(folder: Path, recompute: bool = False) -> object:
    """Cached features of two images; what is damaged is computed again."""
    import torch  # not in the parent

    from vitral.evaluation.feature_cache import DiskCache

    def compute() -> torch.Tensor:
        if not recompute:
            raise DataError("computed again", code="held.recomputed")
        return torch.arange(512.0).reshape(2, 256)

    return DiskCache(folder).features(lambda: "0" * 64, 2, compute)


def use_run(folder: Path, finished: Path) -> None:
    """Resume a run. Damage may be refused, or a valid older checkpoint is taken; another end is a fault."""
    vitral.resume(folder)
    for name in ENDS:
        if (folder / name).read_bytes() != (finished / name).read_bytes():
            raise RuntimeError(f"resumed to another {name}")
    raise DataError("resumed to the same bytes", code="held.same_bytes")


def cases(seed: int, share: float, made: Artefacts) -> Iterator[Case]:
    """Random faults in each kind of artefact; `share` scales their number."""
    uses: dict[str, tuple[Path, int, Callable[[Path], object]]] = {
        "bundle": (made.bundle, 500, lambda folder: use_bundle(folder, made.image)),
        "export": (made.export, 200, lambda folder: use_export(folder, made.image)),
        "run.py": (made.export, 60, lambda folder: use_runner(folder, made.image)),
        "pack": (made.pack, 200, use_pack),
        "pack, read": (made.pack, 200, lambda folder: read_pack(folder, made.pack)),
        "cache": (made.cache, 100, use_cache),
        "run": (made.killed, 300, lambda folder: use_run(folder, made.finished)),
    }
    for kind, (source, count, use) in uses.items():
        cpu_seconds = TRAINING if kind == "run" else CPU_SECONDS
        for number in range(int(count * share)):
            make = damaged(source, [seed, number, len(kind)])
            yield Case(f"damaged {kind}", str(number), make, use, cpu_seconds=cpu_seconds)
