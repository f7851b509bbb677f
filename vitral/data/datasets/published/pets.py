"""Oxford-IIIT Pets: 37 breeds of cats and dogs (`images.tar.gz` and `annotations.tar.gz`, unpacked)."""

from pathlib import Path

from vitral.core.errors import DataError
from vitral.data.datasets.files import read_lines
from vitral.data.datasets.published.download import existing_items, file_store, missing_part
from vitral.data.samples import Item, OnFault, Samples, Split, by_split_and_name

LISTS: dict[Split, str] = {"train": "annotations/trainval.txt", "test": "annotations/test.txt"}
HOW = "unpack images.tar.gz and annotations.tar.gz of Oxford-IIIT Pets (images/, annotations/trainval.txt and test.txt)"


def is_pets(folder: Path) -> bool:
    """Whether the folder has one of the lists, or photos named as theirs are."""
    return any((folder / name).is_file() for name in LISTS.values()) or (folder / "images/Abyssinian_1.jpg").is_file()


def open_pets(folder: Path, on_fault: OnFault) -> Samples:
    """The images of trainval and test; the classes are the breeds, in the order of their numbers."""
    missing = [name for name in (*LISTS.values(), "images/") if not (folder / name).exists()]
    if missing:
        raise missing_part(folder, missing, HOW)
    breeds: dict[int, str] = {}
    items: list[Item] = []
    for split, name in LISTS.items():
        for number, line in enumerate(read_lines(folder / name), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            breed = words[0].rpartition("_")[0]
            label = int(words[1]) if len(words) == 4 and words[1].isdecimal() else 0
            if not breed or label < 1 or breeds.setdefault(label, breed) != breed:
                message = f"expected `{breeds.get(label, 'Abyssinian')}_1 {max(label, 1)} 1 1`, found {line.strip()!r}"
                where = f"{folder / name}:{number}"
                raise DataError(message, code="data.bad_label", where=where, hint="download annotations.tar.gz again")
            items.append(Item(f"images/{words[0]}.jpg", label - 1, split))
    classes = tuple(breeds[number] for number in sorted(breeds))
    if sorted(breeds) != list(range(1, len(breeds) + 1)):
        raise DataError("some numbers of classes have no images", code="data.bad_label", where=folder, hint=HOW)
    there = existing_items(folder, sorted(items, key=by_split_and_name), on_fault)
    return Samples("oxford-pets", classes, there, file_store(folder), (f"read from {folder}",))
