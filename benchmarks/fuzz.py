"""`python -m benchmarks.fuzz TARGET [--seconds 1200] [--seeds FOLDER]`: coverage-guided fuzzing of what reads files.

A target gets bytes that atheris (libFuzzer) mutates towards code that was not reached before. An error with a code is
an answer; any other exception, a crash, an input that takes more than 5 s of CPU, or memory that has grown by more
than 50 MB is a fault, and the input stays in the folder of seeds as `crash-*`, `timeout-*` or `oom-*`. An input of each
fault is kept in `tests/fixtures/fuzz` and replayed by `tests/test_fuzz.py`. Needs `pip install atheris` in the
environment of vitral; the log of libFuzzer shows the coverage.
"""

import argparse
import gc
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from time import process_time, sleep

GROWTH = 50  # MB that memory may grow by after the warm-up
WARM_UP = 2000  # inputs
CPU_SECONDS = 5  # for one input
TIMEOUT = 120  # seconds for one input, which may wait for a busy machine
KEPT = Path(__file__).parents[1] / "tests/fixtures/fuzz"  # inputs that once were faults, replayed by the tests
MEMORY = 2048  # MB of a process at which libFuzzer calls an input a fault

os.environ.setdefault("OMP_NUM_THREADS", "1")


def decoder(folder: Path) -> Callable[[bytes], object]:
    from vitral import Decoding
    from vitral.core.config import Size
    from vitral.data.decoding.decode import decode

    return lambda data: decode(data, "fuzzed", Decoding(pixel_limit=1 << 20), Size(32, 32))


def weights(folder: Path) -> Callable[[bytes], object]:
    """The first byte chooses the kind of file; the configs lie beside good weights."""
    from vitral import create_model, load, save

    small = {"width": 8, "depth": 1, "mixer.heads": 2}
    save(create_model("Ti/16", image_size=32, num_classes=2, settings=small), folder / "bundle")
    (folder / "foreign").mkdir()
    # As .npz: reading a good .safetensors leaks 56 bytes for each tensor (safetensors 0.8), which adds up here.
    (folder / "foreign" / "model.npz").write_bytes(valid("weights")[1][1:])
    names = ("a.safetensors", "a.npz", "a.bin", "foreign/config.json", "bundle/config.json")

    def read(data: bytes) -> object:
        path = folder / names[data[0] % len(names) if data else 0]
        path.write_bytes(data[1:])
        alone = path.name != "config.json"
        settings = {"mixer.heads": 2} if alone else None
        try:
            return load(path if alone else path.parent, allow_pickle=True, verify_files=False, settings=settings)
        finally:
            path.unlink()

    return read


def manifest(folder: Path) -> Callable[[bytes], object]:
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (folder / name).write_bytes(b"")
    return opened(folder, (".csv", ".tsv", ".jsonl"))


def tar(folder: Path) -> Callable[[bytes], object]:
    return opened(folder, (".tar",))


def opened(folder: Path, suffixes: tuple[str, ...]) -> Callable[[bytes], object]:
    """A set that is opened, and its first samples read; the first byte chooses the kind of file."""
    from vitral import open_data

    def read(data: bytes) -> object:
        path = folder / f"fuzzed{suffixes[data[0] % len(suffixes) if data else 0]}"
        path.write_bytes(data[1:])
        try:
            samples = open_data(str(path))
            return [samples.read(item) for split in ("train", "val") for item in samples.of(split)[:4]]
        finally:
            path.unlink()

    return read


TARGETS: dict[str, Callable[[Path], Callable[[bytes], object]]] = {
    "decoder": decoder,
    "weights": weights,
    "manifest": manifest,
    "tar": tar,
}


def seeds(target: str) -> list[bytes]:
    """Small valid files to begin with, and the inputs that were kept."""
    return [*valid(target), *(path.read_bytes() for path in sorted((KEPT / target).glob("*")))]


def valid(target: str) -> list[bytes]:
    from benchmarks.attack import containers, images

    if target == "decoder":
        return [images.encoded(kind, 0, 24, 32) for kind in images.FORMATS]
    if target == "weights":
        return valid_weights()
    if target == "manifest":
        table = b"path,label,split\na.jpg,one,train\nb.jpg,two,train\nc.jpg,one,val\n"
        lines = b'{"path": "a.jpg", "label": "one"}\n{"path": "b.jpg", "label": 2}\n'
        return [b"\0" + table, b"\1" + table.replace(b",", b"\t"), b"\2" + lines]
    photo = images.encoded("jpeg", 0)[:200]
    pairs = [
        ("train/0.jpg", photo),
        ("train/0.cls", b"1"),
        ("train/1.jpg", photo),
        ("train/1.json", b'{"label": "one"}'),
    ]
    return [b"\0" + containers.tar(pairs)]


def valid_weights() -> list[bytes]:
    """A file of each kind, of a width and a patch that keep it small."""
    import numpy as np
    import torch
    from safetensors.numpy import save

    from benchmarks.before import timm_weights

    tensors = {
        name: tensor[:, :, :2, :2].contiguous()
        if tensor.ndim == 4
        else tensor[:, :5].contiguous()
        if tensor.ndim == 3
        else tensor
        for name, tensor in timm_weights(4, depth=1, classes=2).items()
    }
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    zipped, pickled = io.BytesIO(), io.BytesIO()
    np.savez_compressed(zipped, **arrays)
    torch.save({"head.weight": tensors["head.weight"], "epoch": 3}, pickled)
    sizes = {"embed_dim": 4, "depth": 1, "num_heads": 2, "patch_size": 2, "img_size": 4}
    foreign = {"architecture": "vit_base_patch16_224", "num_classes": 2, "model_args": sizes}
    with TemporaryDirectory() as folder:
        from vitral import create_model
        from vitral import save as save_bundle

        small = {"width": 8, "depth": 1, "mixer.heads": 2}
        save_bundle(create_model("Ti/16", image_size=32, num_classes=2, settings=small), folder)
        bundle = (Path(folder) / "config.json").read_bytes()
    contents = [save(arrays), zipped.getvalue(), pickled.getvalue(), json.dumps(foreign).encode(), bundle]
    return [bytes([kind]) + content for kind, content in enumerate(contents)]


def resident() -> float:
    """MB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watched:
    """A target that counts its inputs, keeps those that are faults, and watches the memory of the process."""

    def __init__(self, target: str, read: Callable[[bytes], object], corpus: Path) -> None:
        self.target, self.read, self.corpus = target, read, corpus
        self.count, self.answered, self.baseline, self.growth = 0, 0, 0.0, 0.0
        self.faults: set[str] = set()
        self.started = process_time()

    def __call__(self, data: bytes) -> None:
        from vitral.core.errors import VitralError

        self.count += 1
        if self.count == WARM_UP:
            gc.collect()
            self.baseline = resident()
        started = process_time()
        try:
            self.read(data)
            self.answered += 1
        except VitralError as error:
            if error.code.startswith("internal."):
                self.keep(data, error)
        except Exception as error:
            self.keep(data, error)
        if process_time() - started > CPU_SECONDS:
            self.keep(data, TimeoutError())
        if self.count % 2000 == 0 and self.baseline:
            gc.collect()  # cycles are freed late where there are many old objects: they are no leak
            self.growth = max(self.growth, resident() - self.baseline)
            if self.growth > GROWTH:
                self.faults.add("memory")
                self.report()

    def keep(self, data: bytes, error: Exception) -> None:
        """Keep one input of each place that raises, and go on."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "slow"
        if place not in self.faults:
            self.faults.add(place)
            (self.corpus / f"crash-{sha256(data).hexdigest()[:12]}").write_bytes(data)
            print(f"FAULT {place}\n{traceback.format_exc()}", flush=True)

    def end_after(self, seconds: float) -> None:
        """Report once the process has taken so many seconds of CPU, however busy the machine is."""
        while process_time() - self.started < seconds:
            sleep(1.0)
        self.report()

    def report(self) -> None:
        """Print what was found, and end the process: libFuzzer does not return."""
        seconds = process_time() - self.started
        print(
            f"{self.target}: {self.count:,} inputs in {seconds:.0f} s of CPU, {self.answered:,} answered, "
            f"memory grew by at most {self.growth:.0f} MB; faults: {', '.join(sorted(self.faults)) or 'none'}",
            flush=True,
        )
        os._exit(bool(self.faults))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=1200, help="of CPU")
    parser.add_argument("--seeds", type=Path, default=Path("fuzz"), help="folder of inputs, kept and extended")
    asked = parser.parse_args()

    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # not a dependency

    with atheris.instrument_imports(include=["vitral"]):
        from vitral.core.errors import VitralError

        read = TARGETS[asked.target](Path(mkdtemp(prefix="fuzz-", dir="/dev/shm")))
        for data in seeds(asked.target):  # which imports what is imported on first use
            with suppress(VitralError):
                read(data)
    corpus = asked.seeds / asked.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(asked.target)):
        (corpus / f"seed-{number}").write_bytes(data)
    watched = Watched(asked.target, read, corpus)
    threading.Thread(target=watched.end_after, args=[asked.seconds], daemon=True).start()
    atheris.Setup(
        [sys.argv[0], f"-timeout={TIMEOUT}", f"-rss_limit_mb={MEMORY}", f"-artifact_prefix={corpus}/", str(corpus)],
        watched,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
