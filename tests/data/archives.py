"""Small data sets in the forms that the well-known ones are published in."""

import gzip
import json
import pickle
import struct
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.data.pictures import noise

Array = NDArray[np.uint8]


class Truth(NamedTuple):
    """Images and labels as they were before they were written."""

    images: Array
    labels: Array


class Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2 wrote its strings; the rest of protocol 2 has not changed."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        data = text.encode("latin-1") if isinstance(text, str) else text
        short = len(data) < 256
        head = b"U" + bytes([len(data)]) if short else b"T" + struct.pack("<i", len(data))
        self.write(head + data)  # type: ignore[attr-defined]
        self.memoize(text)  # type: ignore[attr-defined]

    dispatch[str] = save_string
    dispatch[bytes] = save_string


def python2_pickle(value: Any) -> bytes:
    """The pickle that Python 2 and the numpy of its day would have written."""
    stream = BytesIO()
    Python2Pickler(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def some(count: int, *shape: int, classes: int = 10, seed: int = 0) -> Truth:
    """So many images of noise, with labels that are all different as far as the classes go."""
    labels = (np.arange(count) * 7 + seed) % classes
    return Truth(noise(count, *shape, seed=seed).astype(np.uint8), labels.astype(np.uint8))


def idx(array: NDArray[Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, train: Truth, test: Truth, packed: bool = False) -> None:
    """The four files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, truth in (("train", train), ("t10k", test)):
        for message, array in (("images-idx3-ubyte", truth.images), ("labels-idx1-ubyte", truth.labels)):
            name, data = f"{prefix}-{message}", idx(array)
            (folder / f"{name}.gz" if packed else folder / name).write_bytes(gzip.compress(data) if packed else data)


def planes(images: Array) -> Array:
    """Images as CIFAR has them: a row for each, with all its red, then its green, then its blue."""
    return np.stack([np.concatenate([image[..., color].ravel() for color in range(3)]) for image in images])


def fives(truth: Truth) -> list[Truth]:
    """The images in the five batches of CIFAR-10."""
    return [Truth(*parts) for parts in zip(np.split(truth.images, 5), np.split(truth.labels, 5), strict=True)]


def batches(train: Truth, test: Truth) -> dict[str, Truth]:
    """The files of CIFAR-10, without their endings."""
    return {**{f"data_batch_{n}": part for n, part in enumerate(fives(train), start=1)}, "test_batch": test}


def write_cifar10_pickles(folder: Path, train: Truth, test: Truth) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, truth in batches(train, test).items():
        content = {
            "batch_label": name,
            "labels": truth.labels.tolist(),
            "data": planes(truth.images),
            "filenames": [f"thing_s_{number:06}.png" for number in range(len(truth.labels))],
        }
        (folder / name).write_bytes(python2_pickle(content))


def write_cifar100_pickles(folder: Path, train: Truth, test: Truth) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, truth in (("train", train), ("test", test)):
        content = {
            "filenames": [f"thing_s_{number:06}.png" for number in range(len(truth.labels))],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": truth.labels.tolist(),
            "coarse_labels": (truth.labels // 5).tolist(),
            "data": planes(truth.images),
        }
        (folder / name).write_bytes(python2_pickle(content))


def write_cifar10_records(folder: Path, train: Truth, test: Truth) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, truth in batches(train, test).items():
        (folder / f"{name}.bin").write_bytes(np.hstack([truth.labels[:, None], planes(truth.images)]).tobytes())


def write_cifar100_records(folder: Path, train: Truth, test: Truth) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, truth in (("train", train), ("test", test)):
        labels = np.stack([truth.labels // 5, truth.labels], axis=1)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, planes(truth.images)]).tobytes())


def write_cifar10_pngs(folder: Path, train: Truth, test: Truth) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, truth in batches(train, test).items():
        Image.fromarray(truth.images.reshape(-1, 1024, 3)).save(folder / f"{name}.png")
    for name, truth in (("train", train), ("test", test)):
        (folder / f"{name}_lables.json").write_text(json.dumps(truth.labels.tolist()))


def write_digits(folder: Path, ink: NDArray[Any], labels: NDArray[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = (",".join(map(str, [*image.ravel(), label])) for image, label in zip(ink, labels, strict=True))
    (folder / "digits.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
