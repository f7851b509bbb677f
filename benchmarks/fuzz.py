"""`python -m benchmarks.fuzz TARGET [--seconds 1200] [--seeds FOLDER]`: coverage-guided fuzzing of what reads files.

A target gets bytes that atheris (libFuzzer) mutates towards code that was not reached before. An error with a code is
an answer; any other exception, a crash, an input that takes more than 5 s, or memory that has grown by more than 50 MB
at the end is a fault, and the input stays in the folder of seeds as `crash-*`, `timeout-*` or `oom-*`. Needs
`pip install atheris` in the environment of vitral.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic

GROWTH = 50  # MB that memory may grow by after the warm-up
WARM_UP = 2000  # inputs
TIMEOUT = 5  # seconds for one input
MEMORY = 2048  # MB of a process at which libFuzzer calls an input a fault

os.environ.setdefault("OMP_NUM_THREADS", "1")


def decoder(folder: Path) -> Callable[[bytes], object]:
    from vitral import Decoding
    from vitral.core.config import Size
    from vitral.data.decoding.decode import decode

    return lambda data: decode(data, "fuzzed", Decoding(pixel_limit=1 << 20), Size(32, 32))


def weights(folder: Path) -> Callable[[bytes], object]:
    """The first byte chooses the kind of file."""
    from vitral import load

    def read(data: bytes) -> object:
        path = folder / f"fuzzed{('.safetensors', '.npz', '.bin', '.json')[data[0] % 4 if data else 0]}"
        path.write_bytes(data[1:])
        try:
            return load(path)
        finally:
            path.unlink()

    return read


def manifest(folder: Path) -> Callable[[bytes], object]:
    return opened(folder, (".csv", ".tsv", ".jsonl"))


def tar(folder: Path) -> Callable[[bytes], object]:
    return opened(folder, (".tar",))


def opened(folder: Path, suffixes: tuple[str, ...]) -> Callable[[bytes], object]:
    """A set that is opened; the first byte chooses the kind of file."""
    from vitral import open_data

    def read(data: bytes) -> object:
        path = folder / f"fuzzed{suffixes[data[0] % len(suffixes) if data else 0]}"
        path.write_bytes(data[1:])
        try:
            return open_data(str(path))
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
    """Small valid files to begin with."""
    from benchmarks.attack import containers, images

    if target == "decoder":
        return [images.encoded(kind, 0) for kind in images.FORMATS]
    if target == "weights":
        from safetensors.numpy import save

        from benchmarks.before import timm_weights

        arrays = {name: tensor.numpy() for name, tensor in timm_weights(4, depth=1, classes=2).items()}
        return [b"\0" + save(arrays), b"\1" + containers.npz(1), b"\3{}"]
    if target == "manifest":
        table = b"path,label,split\na.jpg,one,train\nb.jpg,two,val\n"
        return [b"\0" + table, b"\1" + table.replace(b",", b"\t"), b'\2{"path": "a.jpg", "label": "one"}\n']
    return [b"\0" + containers.tar([("train/one/0.jpg", images.encoded("jpeg", 0)), ("train/one/0.cls", b"1")])]


def resident() -> float:
    """MB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--seeds", type=Path, default=Path("fuzz"), help="folder of inputs, kept and extended")
    asked = parser.parse_args()

    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # not a dependency

    with atheris.instrument_imports(include=["vitral"]):
        from vitral.core.errors import VitralError

        read = TARGETS[asked.target](Path(mkdtemp(prefix="fuzz-", dir="/dev/shm")))
    corpus = asked.seeds / asked.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(asked.target)):
        (corpus / f"seed-{number}").write_bytes(data)
    count, baseline, started = 0, 0.0, monotonic()

    def test(data: bytes) -> None:
        nonlocal count, baseline
        count += 1
        if count == WARM_UP:
            baseline = resident()
        try:
            read(data)
        except VitralError as error:
            if error.code.startswith("internal."):
                raise
        if count % 1000 == 0 and baseline and resident() - baseline > GROWTH:
            raise MemoryError(f"memory has grown by {resident() - baseline:.0f} MB")

    def report() -> None:
        grown = resident() - baseline if baseline else 0.0
        print(
            f"{asked.target}: {count:,} inputs in {monotonic() - started:.0f} s, no fault, {grown:+.0f} MB", flush=True
        )
        os._exit(0)

    threading.Timer(asked.seconds, report).start()
    atheris.Setup(
        [sys.argv[0], f"-timeout={TIMEOUT}", f"-rss_limit_mb={MEMORY}", f"-artifact_prefix={corpus}/", str(corpus)],
        test,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
