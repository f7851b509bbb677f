"""What the sources of published sets share: lists of files, and the errors of a download that is not whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitral.core.errors import DataError
from vitral.data.datasets.files import FileStore, ancestors_of, list_folder
from vitral.data.samples import Item, OnFault, Store, format_names

PARTLY = "to use a part of the set, give its folder of classes by its path instead of the name of the set"


@dataclass(frozen=True)
class PartStore:
    """A store of several: the first folder of a name, such as `train`, says which one has the image."""

    parts: tuple[tuple[str, Store], ...]

    def read(self, name: str) -> bytes:
        return self._part(name).read(name)

    def address(self, name: str) -> str:
        return self._part(name).address(name)

    def size(self, name: str) -> int:
        return self._part(name).size(name)

    def _part(self, name: str) -> Store:
        first = name.partition("/")[0]
        return next(store for part, store in self.parts if part == first)


def image_names(folder: Path) -> list[str]:
    """The names of the images in a folder."""
    return list_folder(str(folder), ancestors_of(folder)).images


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder."""
    return list_folder(str(folder), ancestors_of(folder)).folders


def missing_part(folder: Path, missing: Iterable[str], expected: str) -> DataError:
    """The error for a download that lacks files; `expected` says where each comes from."""
    message = f"not the whole download: {format_names(list(missing))} not found"
    return DataError(message, code="data.partial_download", where=folder, hint=expected)


def partial(folder: Path, message: str, hint: str = PARTLY) -> DataError:
    """The error for a download with too few images or classes."""
    where = f"not the whole download: {message}"
    return DataError(where, code="data.partial_download", where=folder, hint=f"download or unpack it again; {hint}")


def existing_items(folder: Path, items: Sequence[Item], on_fault: OnFault) -> tuple[Item, ...]:
    """The items whose files are in the folder that their names begin with; it is a fault if some are missing."""
    parts = {item.name.partition("/")[0] for item in items}
    there = {f"{part}/{name}" for part in parts for name in image_names(folder / part)}
    missing = [item.name for item in items if item.name not in there]
    if missing:
        listed = f"{len(missing):,} of the {len(items):,} images it lists are missing ({format_names(missing)})"
        on_fault(partial(folder, listed, "every image is used"))
    return tuple(item for item in items if item.name in there)


def file_store(folder: Path) -> FileStore:
    """The store of a folder, whose names are paths in it."""
    return FileStore(str(folder))
