"""`python -m benchmarks.attack.faults [--photos FOLDER]`: the faults that an attack from outside found, made again.

Each is built as it was then. Prints, for each, what it did then and what it does now: the number of damaged files that
are accepted, or the CPU time and memory of a hostile one. The photos, 900 of which are damaged, are synthetic without
a folder.
"""

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import vitral
from benchmarks.attack import artifacts, containers, images, places
from benchmarks.attack.artifacts import Artefacts
from benchmarks.attack.case import Case, Result, run_cases
from benchmarks.photos import jpeg

PHOTOS = 900
THEN = {  # what was found
    "flipped bytes in the weights of a bundle": "200 of 200 accepted",
    "flipped bytes in an export": "32 of 32 accepted",
    "reversed classes in export.json": "wrong labels",
    "lines of metrics.jsonl deleted, cut, changed": "another best/, exit code 0",
    "a checkpoint without its optimizer": "not refused",
    "images of equal size swapped before a resume": "not noticed",
    "JPEGs cut in half, with an end marker": "899 of 900 accepted",
    "JPEGs overwritten, continued by another, flipped": "nearly all accepted",
    "Parquet of equal rows": "1.4 KB: 4 GB",
    "WebP of 16,383 x 16,383": "24 KB: 3.8 GB",
    "JPEG of 16,500 scans": "1.6 MB: 76 s",
    "npz of zeros": "1 MB: 2.3 GB",
    "safetensors of 1,270,000 names": "89 MB: 79 s",
    "sparse file of 6 GB": "6 GB",
    "JPEG of 0xFF": "50 MB: more than 60 s",
}


class Fault(NamedTuple):
    """Cases of one kind of fault."""

    name: str
    cases: list[Case]


def flips(name: str, source: Path, file: str, count: int, use: Callable[[Path], object]) -> Fault:
    """One flipped bit at a time in a file."""

    def flipped(number: int) -> Callable[[Path], Path]:
        def make(folder: Path) -> Path:
            copy = folder / source.name
            shutil.copytree(source, copy)
            data = bytearray((copy / file).read_bytes())
            draw = np.random.default_rng(number)
            data[int(draw.integers(len(data)))] ^= 1 << int(draw.integers(8))
            (copy / file).write_bytes(data)
            return copy

        return make

    return Fault(name, [Case(name, str(number), flipped(number), use) for number in range(count)])


def changed(source: Path, change: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A copy with a change."""

    def make(folder: Path) -> Path:
        copy = folder / source.name
        shutil.copytree(source, copy)
        change(copy)
        return copy

    return make


def reverse_classes(folder: Path) -> None:
    file = folder / "export.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"classes": found["classes"][::-1]}, indent=2))


def edit_log(how: str, folder: Path) -> None:
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    if how == "deleted":
        del lines[1]
    elif how == "cut":
        lines[1:] = []
    else:
        lines[1] = lines[1].replace(b"0.", b"1.", 1)
    file.write_bytes(b"".join(lines))


def drop_optimizer(folder: Path) -> None:
    """Remove the optimizer's file of every checkpoint, and what the manifests say of it."""
    for manifest in folder.glob("checkpoints/*/manifest.json"):
        found = json.loads(manifest.read_text())
        entries = [entry for entry in found["files"] if "optimizer" not in entry["name"]]
        assert len(entries) < len(found["files"])
        manifest.write_text(json.dumps(found | {"files": entries}))
        for path in manifest.parent.glob("*optimizer*"):
            path.unlink()


def swap_images(photos: Path) -> None:
    """Give two images of different classes each other's content, at one length."""
    first, second = photos / "train/one/0.jpg", photos / "train/two/0.jpg"
    length = max(first.stat().st_size, second.stat().st_size)
    contents = [path.read_bytes().ljust(length, b"\0") for path in (second, first)]
    for path, content in zip((first, second), contents, strict=True):
        path.write_bytes(content)


def resume_on_swapped(made: Artefacts) -> Case:
    """A run whose images are swapped while it is stopped."""
    name = "images of equal size swapped before a resume"

    def make(folder: Path) -> Path:
        photos = artifacts.make_photos(folder / "photos")
        for path in photos.rglob("*.jpg"):
            path.write_bytes(path.read_bytes().ljust(2000, b"\0"))
        artifacts.in_child(lambda: artifacts.train(photos, folder / "run", kill_at=artifacts.KILL_AT))
        swap_images(photos)
        return folder / "run"

    return Case(name, "two", make, lambda run: artifacts.use_run(run, made.finished), cpu_seconds=artifacts.TRAINING)


def pixels_of(data: bytes) -> tuple[int, int]:
    """Where the pixels of a JPEG begin, and their middle."""
    start = data.rindex(b"\xff\xda") + 14
    return start, (start + len(data)) // 2


def damage(data: bytes, number: int, other: bytes) -> bytes:
    """A photo with 200 bytes overwritten, continued by the second half of another, or with 8 flipped bits."""
    draw = np.random.default_rng(number)
    start, middle = pixels_of(data)
    match number % 3:
        case 0:
            length = min(200, len(data) - 2 - middle)
            return data[:middle] + draw.bytes(length) + data[middle + length :]
        case 1:
            return data[:middle] + other[len(other) // 2 :]
        case _:
            changed = bytearray(data)
            for place in draw.integers(start, len(data) - 2, 8):
                changed[place] ^= 1 << int(draw.integers(8))
            return bytes(changed)


def damaged_photos(folder: Path | None) -> Iterator[Fault]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg"}) if folder else []
    photos = [path.read_bytes() for path in paths[:PHOTOS]] or [jpeg(240, 320, seed) for seed in range(40)]
    pairs = [(photos[number % len(photos)], photos[(number + 1) % len(photos)]) for number in range(PHOTOS)]
    halves = [data[: pixels_of(data)[1]] + b"\xff\xd9" for data, _ in pairs]
    others = [damage(data, number, other) for number, (data, other) in enumerate(pairs)]
    for name, files in zip(list(THEN)[6:8], (halves, others), strict=True):
        cases = [
            Case(name, str(number), images.written(data, "a.jpg"), images.predict) for number, data in enumerate(files)
        ]
        yield Fault(name, cases)


def equal_rows(count: int) -> bytes:
    """A Parquet file of one image, repeated: as long as one row."""
    import pyarrow as arrow
    import pyarrow.parquet as tables

    column = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(count, np.int32)), arrow.array([b"\xff\xd8" * 200]))
    out = BytesIO()
    table = arrow.table({"image": column, "label": arrow.array(np.zeros(count, np.int64))})
    tables.write_table(table, out, row_group_size=count, max_rows_per_page=count, write_batch_size=count)
    return out.getvalue()


def hostile() -> Iterator[Fault]:
    files: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], object]]] = {
        "Parquet of equal rows": ("a.parquet", lambda: equal_rows(10_000_000), images.check),
        "WebP of 16,383 x 16,383": ("a.webp", lambda: images.webp(16_383, 16_383), images.predict),
        "JPEG of 16,500 scans": ("a.jpg", lambda: images.scans(16_500, mode="L"), images.predict),
        "npz of zeros": ("a.npz", lambda: containers.npz(1100), vitral.load),
        "safetensors of 1,270,000 names": ("a.safetensors", lambda: containers.many_tensors(1_270_000), vitral.load),
        "JPEG of 0xFF": ("a.jpg", lambda: b"\xff\xd8" + b"\xff" * 50_000_000, images.predict),
    }
    for name, (file, make, use) in files.items():
        data = make()
        yield Fault(name, [Case(name, f"{len(data):,} bytes", images.written(data, file), use)])
    name = "sparse file of 6 GB"
    yield Fault(name, [Case(name, "6 GB", places.special(places.sparse, "a.jpg"), images.predict)])


def artefact_faults(made: Artefacts) -> Iterator[Fault]:
    def use_bundle(folder: Path) -> object:
        return artifacts.use_bundle(folder, made.image)

    def use_export(folder: Path) -> object:
        return artifacts.use_export(folder, made.image)

    def use_run(folder: Path) -> object:
        return vitral.resume(folder)

    yield flips("flipped bytes in the weights of a bundle", made.bundle, "model.safetensors", 200, use_bundle)
    model = max((path for path in made.export.iterdir()), key=lambda path: path.stat().st_size).name
    yield flips("flipped bytes in an export", made.export, model, 32, use_export)
    name = "reversed classes in export.json"
    yield Fault(name, [Case(name, "", changed(made.export, reverse_classes), use_export)])
    name = "lines of metrics.jsonl deleted, cut, changed"
    edits = [changed(made.killed, partial(edit_log, how)) for how in ("deleted", "cut", "changed")]
    yield Fault(name, [Case(name, "", make, use_run, cpu_seconds=artifacts.TRAINING) for make in edits])
    name = "a checkpoint without its optimizer"
    make = changed(made.killed, drop_optimizer)
    yield Fault(name, [Case(name, "", make, use_run, cpu_seconds=artifacts.TRAINING)])
    yield Fault("images of equal size swapped before a resume", [resume_on_swapped(made)])


def describe(fault: Fault, results: list[Result]) -> str:
    accepted = sum(result.outcome == "answered" for result in results)
    codes = sorted({result.outcome for result in results if result.outcome != "answered"})
    seconds, megabytes = max(result.seconds for result in results), max(result.megabytes for result in results)
    sizes = f"{results[0].name}: " if len(results) == 1 and results[0].name else ""
    return f"{sizes}{accepted} of {len(results)} accepted, {seconds:.2f} s, {megabytes:.0f} MB ({', '.join(codes)})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack.faults", description=__doc__)
    parser.add_argument("--photos", type=Path, help="folder of JPEGs to damage")
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="attack-faults-") as folder:
        made = artifacts.make_artefacts(Path(folder))
        images.predictor()
        faults = [*artefact_faults(made), *damaged_photos(asked.photos), *hostile()]
        for fault in faults:
            results = list(run_cases(fault.cases, images.warm_up))
            print(f"{fault.name:<48} {THEN[fault.name]:<28} {describe(fault, results)}", flush=True)


if __name__ == "__main__":
    main()
