"""Open any dataset by name or path. Nothing is downloaded; remote shards are read in place."""

from difflib import get_close_matches
from pathlib import Path

from vitral.core.errors import ConfigError, DataError, format_choices
from vitral.data.datasets.files import suffix, unreadable
from vitral.data.datasets.folder import open_folder, open_unlabeled
from vitral.data.datasets.huggingface import holds_tables, open_tables
from vitral.data.datasets.manifest import MANIFEST_SUFFIXES, has_labels, open_manifest, open_unlabeled_manifest
from vitral.data.datasets.named import NAMED_DATASETS, open_named, open_sample
from vitral.data.datasets.pack_index import is_pack, verify_pack
from vitral.data.datasets.shards import names_shards, open_shards
from vitral.data.datasets.urls import is_remote
from vitral.data.samples import OnFault, Samples, StratifiedSplit, refuse

SAMPLE = "sample"
ARCHIVES = {".7z", ".bz2", ".gz", ".rar", ".tgz", ".xz", ".zip"}


def list_datasets() -> tuple[str, ...]:
    """The names of the datasets that `open_data` knows: the bundled one, and those it searches for on this machine."""
    return (SAMPLE, *NAMED_DATASETS)


def open_data(
    where: str,
    val_split: StratifiedSplit = StratifiedSplit(),  # noqa: B008, a frozen value
    root: str = "",
    on_fault: OnFault = refuse,
) -> Samples:
    """The samples of a named dataset, a folder, a manifest, tables or tar shards; `sample` is the bundled dataset.

    A folder contains class folders with images, or Parquet or Arrow files of Hugging Face. A file is such a table or a
    `.csv`, `.tsv` or `.jsonl` manifest. To open a local folder called `sample` or `mnist`, write `./sample` or
    `./mnist`. `val_split` divides datasets that have training images only. A named dataset is read from `root`, or from
    the usual locations if `root` is empty. Structural faults go to `on_fault`, which raises the first by default.
    """
    if where in NAMED_DATASETS:
        return open_named(where, val_split, root, on_fault)
    if root:
        message = f"is for named datasets only, got {where!r}"
        hint = f"leave it out, or name one of {', '.join(NAMED_DATASETS)}"
        raise ConfigError(message, code="config.conflict", where="root", hint=hint)
    if where == SAMPLE:
        return open_sample()
    if not where.strip():
        hint = f"give a folder, a manifest ({format_choices(MANIFEST_SUFFIXES)}) or {SAMPLE}"
        raise DataError("no data given", code="data.not_given", hint=hint)
    path = Path(where).expanduser()
    address = where if is_remote(where) else str(path)
    try:
        if names_shards(address):
            return open_shards(address, val_split, on_fault)
        if holds_tables(path):
            return open_tables(path, val_split, on_fault)
        if path.is_dir():
            return open_folder(path, val_split, on_fault)
        if path.is_file() and suffix(path.name) in MANIFEST_SUFFIXES:
            return open_manifest(path, val_split, on_fault)
        if path.exists():
            hint = f"give a folder with a folder for each class, or a manifest ({format_choices(MANIFEST_SUFFIXES)})"
            if suffix(path.name) in ARCHIVES:
                hint = "unpack it and give the folder"
            raise DataError("not a folder or a manifest", code="data.unknown_format", where=where, hint=hint)
        raise no_such_path(path)
    except OSError as error:
        raise unreadable(where, error) from None


def open_images(
    where: str,
    val_split: StratifiedSplit = StratifiedSplit(),  # noqa: B008, a frozen value
    root: str = "",
    on_fault: OnFault = refuse,
) -> Samples:
    """The same for tasks without labels: of a folder, all images in it and in the folders below it.

    A manifest needs no labels; where it has some, it is opened with them.
    """
    path = Path(where).expanduser()
    if where not in (SAMPLE, *NAMED_DATASETS) and suffix(path.name) in MANIFEST_SUFFIXES and path.is_file():
        return (open_manifest if has_labels(path) else open_unlabeled_manifest)(path, val_split, on_fault)
    plain = (
        where not in (SAMPLE, *NAMED_DATASETS)
        and path.is_dir()
        and not names_shards(str(path))
        and not holds_tables(path)
    )
    if plain:
        return open_unlabeled(path, val_split, on_fault)
    return open_data(where, val_split, root, on_fault)


def verify_data(where: str, on_fault: OnFault) -> None:
    """Compare every byte of a pack with its manifest; other data has none."""
    address = where if is_remote(where) else str(Path(where).expanduser())
    if where not in (SAMPLE, *NAMED_DATASETS) and is_pack(address):
        verify_pack(address, on_fault)


def no_such_path(path: Path) -> DataError:
    """The error for a path that does not exist, with the most similar path that does."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # it may exist
        return unreadable(path, error)
    there = next(parent for parent in path.parents if parent.is_dir())
    wrong, *rest = path.relative_to(there).parts
    try:
        entries = sorted(there.iterdir())
    except OSError as error:  # a folder without the permission to list it
        hint = f"its folder {unreadable(there, error).message}"
        return DataError("no such file or folder", code="data.not_found", where=path, hint=hint)
    beside = {entry.name.lower(): entry for entry in entries if not entry.name.startswith(".")}
    if path == Path(wrong):
        for name in {SAMPLE, *NAMED_DATASETS} - {wrong}:  # the name itself does not help
            beside.setdefault(name, Path(name))
    near = get_close_matches(wrong.lower(), beside, n=1)
    if not near:
        hint = f"nothing in {there.absolute()} has a name like {wrong!r}"
    else:
        whole = beside[near[0]].joinpath(*rest)
        hint = f"did you mean {str(whole if whole.exists() else beside[near[0]])!r}?"
    return DataError("no such file or folder", code="data.not_found", where=path, hint=hint)
