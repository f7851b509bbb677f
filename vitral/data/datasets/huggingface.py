"""Hugging Face datasets on disk: Parquet or Arrow files with a column of images and one of labels.

In order: reading cells with pyarrow (one at a time, no file is held open), choosing the columns, finding the files and
their splits, and opening the dataset.
"""

import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vitral.core.errors import ConfigError, DataError, format_choices
from vitral.core.files import DOCUMENT_BYTES, NotRegularFile, check_file, outside_is_allowed
from vitral.data.datasets.files import is_image, parse_json, read_beside, read_bytes, suffix, unreadable
from vitral.data.samples import (
    SPLIT_ALIASES,
    SPLITS,
    OnFault,
    Row,
    Samples,
    Split,
    StratifiedSplit,
    build_samples,
    format_names,
    refuse,
    reorder_classes,
)

Version = tuple[int, int]
TABLES_KEPT = 4096  # maps of Arrow files and tables of contents of Parquet files
UNPACKED, RATIO = 2**26, 20  # limits of unpacked bytes of a row group: in any file, and relative to its bytes
BATCH_ROWS = 4_096
MAX_ROWS, ROW_BYTES = 1_000_000, 4  # rows of any file, and the bytes of the file for each one more
GROUPS_KEPT = 4  # row groups of Parquet in memory, often of a hundred images each


@dataclass(frozen=True)
class TableStore:
    """A store of the cells of one column, named `data/train.parquet#0000012`: the file and the row.

    A cell holds the bytes of an image, or the path of its file from the root.
    """

    root: str
    column: str
    outside: bool = False  # whether a path may leave the root

    def read(self, name: str) -> bytes:
        file, _, row = name.rpartition("#")
        value = read_cell(os.path.join(self.root, file), self.column, int(row))
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if data is not None:
            return data
        where = self.address(name)
        if not path:
            raise DataError("no image in this row", code="data.missing_image", where=where, hint="remove the row")
        return read_beside(self.root, path, where, self.outside)

    def address(self, name: str) -> str:
        return os.path.join(self.root, name)

    def size(self, name: str) -> int:
        """The number of bytes; this reads the image, because tables do not store sizes."""
        return len(self.read(name))


def read_schema(path: str) -> Any:
    """The names and types of the columns."""
    with _wrap_errors(path):
        if suffix(path) == ".arrow":
            schema = _arrow(path, _version(path)).schema
        else:
            with _parquet(path) as file:
                schema = file.schema_arrow
        _ = schema.names  # names that are not text raise here, not where they are used
        return schema


def read_column(path: str, column: str) -> list[Any]:
    """All the values of a column."""
    with _wrap_errors(path):
        if suffix(path) == ".arrow":
            return _arrow(path, _version(path)).column(column).to_pylist()
        with _parquet(path) as file:
            limit = MAX_ROWS + check_file(path) // ROW_BYTES
            if file.metadata.num_rows > limit:
                raise too_large(f"{file.metadata.num_rows:,} rows, the limit for a file of its size is {limit:,}", path)
            return [value for chunk in _chunks(file, range(file.num_row_groups), column, path) for value in chunk]


def read_cell(path: str, column: str, row: int) -> Any:
    """The value of a column in a row."""
    with _wrap_errors(path):
        version = _version(path)
        if suffix(path) == ".arrow":
            return _arrow(path, version).column(column)[row].as_py()
        starts = _starts(path, version)
        group = bisect_right(starts, row) - 1
        return _group(path, version, column, group)[row - starts[group]].as_py()


def _version(path: str) -> Version:
    """What changes when a file is rewritten, so that nothing stale is served from the caches."""
    found = os.stat(path)
    return found.st_mtime_ns, check_file(path)


@lru_cache(maxsize=TABLES_KEPT)
def _arrow(path: str, version: Version) -> Any:
    """The table in a file of Arrow's stream format, memory-mapped: forked processes share the pages."""
    import pyarrow
    from pyarrow.ipc import open_stream

    with pyarrow.memory_map(path) as file:
        table = open_stream(file).read_all()
    table.validate(full=True)  # Arrow trusts the offsets in a file, and a wrong one would crash the process
    return table


@lru_cache(maxsize=TABLES_KEPT)
def _starts(path: str, version: Version) -> tuple[int, ...]:
    """The first row of each row group, and the row after the last."""
    with _parquet(path) as file:
        groups = range(file.num_row_groups)
        return tuple(accumulate((file.metadata.row_group(group).num_rows for group in groups), initial=0))


@lru_cache(maxsize=GROUPS_KEPT)
def _group(path: str, version: Version, column: str, group: int) -> Any:
    with _parquet(path) as file:
        return Cells(list(_chunks(file, [group], column, path, as_python=False)))


class Cells(NamedTuple):
    """The cells of a column in a row group, in chunks as they were read."""

    chunks: list[Any]

    def __getitem__(self, row: Any) -> Any:
        for chunk in self.chunks:
            if row < len(chunk):
                return chunk[row]
            row -= len(chunk)
        raise IndexError(row)


def too_large(message: str, path: str) -> DataError:
    """The error for a table that unpacks to far more than its size."""
    return DataError(message, code="data.table_too_large", where=path, hint="save it again, with smaller row groups")


def _chunks(file: Any, groups: Iterable[int], column: str, path: str, as_python: bool = True) -> Iterator[Any]:
    """The values of a column, some rows at a time: a few bytes may stand for millions of equal values."""
    for group in groups:
        meta = file.metadata.row_group(group)
        columns = map(meta.column, range(meta.num_columns))
        parts = [part for part in columns if part.path_in_schema.split(".")[0] == column]
        limit = UNPACKED + RATIO * sum(part.total_compressed_size for part in parts)
        unpacked = sum(part.total_uncompressed_size for part in parts)  # no value is longer
        rows = max(1, min(BATCH_ROWS, UNPACKED // max(unpacked, 1)))
        batches = file.iter_batches(batch_size=rows, row_groups=[group], columns=[column], use_threads=False)
        while unpacked <= limit and (batch := next(batches, None)) is not None:
            unpacked += batch.nbytes
            yield batch.column(0).to_pylist() if as_python else batch.column(0)
        if unpacked > limit:
            raise too_large(f"row group {group} of {column} unpacks to more than {limit:,} bytes", path)


def _parquet(path: str) -> Any:
    """A Parquet file, to be closed by the caller. No threads are used: they do not survive a fork."""
    from pyarrow.parquet import ParquetFile

    check_file(path)
    return ParquetFile(path, pre_buffer=False)


@contextmanager
def _wrap_errors(path: str) -> Iterator[None]:
    """Turn errors of pyarrow into DataError, and its absence into ConfigError."""
    try:
        from pyarrow import ArrowException
    except ImportError:
        message, hint = "reading Parquet or Arrow needs more packages", "pip install 'vitral[hub]'"
        raise ConfigError(message, code="config.missing_package", where=path, hint=hint) from None
    try:
        yield
    except (FileNotFoundError, NotRegularFile) as error:
        raise unreadable(path, error) from None
    except (ArrowException, OSError, UnicodeDecodeError, LookupError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        message = f"not a readable table: {reason}"
        raise DataError(message, code="data.bad_table", where=path, hint="download it again") from error


IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "labels", "fine_label")


class Columns(NamedTuple):
    """The two columns, and the names of the classes by number; none if the labels are names or plain numbers."""

    image: str
    label: str
    classes: tuple[str, ...]


def choose_columns(schema: Any, where: str) -> Columns:
    """The columns that `datasets` recorded as image and label in the schema, else those that look like them."""
    features = _features(schema, where)
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    images = [name for name in schema.names if kinds.get(name) == "Image"]
    images = images or [field.name for field in schema if _may_be_image(field.type)]
    image = _only("image", images, IMAGE_NAMES, schema.names, where)
    labels = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    labels = labels or [field.name for field in schema if field.name != image and _may_be_label(field.type)]
    label = _only("label", labels, LABEL_NAMES, schema.names, where)
    classes = features[label].get("names") or () if kinds.get(label) == "ClassLabel" else ()
    return Columns(image, label, tuple(map(str, classes)))


def _features(schema: Any, where: str) -> dict[str, Any]:
    """What `datasets` recorded about each column; nothing in tables from other software."""
    found = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"), where, "data.bad_table", SAVE_AGAIN)
    for field in ("info", "features"):
        found = found.get(field) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _only(role: str, candidates: Sequence[str], usual: Sequence[str], names: Sequence[str], where: str) -> str:
    """The only candidate, or the only one with a usual name."""
    found = [name for name in candidates if name.lower() in usual] if len(candidates) > 1 else candidates
    if len(found) == 1:
        return found[0]
    if not candidates:
        message = f"no column of {role}s among {format_choices(names) if names else 'no columns'}"
        hint = f"give a table with a column called {usual[0]}"
        raise DataError(message, code="data.missing_column", where=where, hint=hint)
    message = f"several columns may be the {role}: {', '.join(candidates)}"
    hint = f"keep one of them, or call it {usual[0]}"
    raise DataError(message, code="data.ambiguous_column", where=where, hint=hint)


def _may_be_image(kind: Any) -> bool:
    """Whether values are encoded images: binary, or a structure with binary `bytes` in it."""
    from pyarrow import types

    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return "bytes" in fields and _may_be_image(fields["bytes"])
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def _may_be_label(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _may_be_label(kind.value_type)
    return any(of(kind) for of in (types.is_integer, types.is_string, types.is_large_string, types.is_string_view))


TABLES = (".parquet", ".arrow")
METADATA = "metadata.parquet"  # belongs to a folder of images, and holds none
DEPTH = 2  # folders between the given one and its files: default/train/0000.parquet
SAVE_AGAIN = "save the dataset again"
SHARD = re.compile(r"(?P<stem>.*?)(-(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-z]+)?)?")


class TableFile(NamedTuple):
    """A file by its path from the root, with `/` between the parts, and the split of its rows."""

    name: str
    split: Split


class TableFiles(NamedTuple):
    files: list[TableFile]
    notes: list[str]


def holds_tables(path: Path) -> bool:
    """Whether the path is a Parquet or Arrow file or a folder of them; a folder with images is not."""
    try:
        if not path.is_dir():
            return suffix(path.name) in TABLES and path.is_file()
        return any(_below(path, DEPTH))
    except OSError:
        return False  # opening it as a folder reports the error


def find_tables(root: Path, on_fault: OnFault = refuse) -> TableFiles:
    """The files of the dataset in a folder."""
    splits = root / "dataset_dict.json"
    if splits.is_file():
        words = _names(splits, "splits", _json(splits).get("splits"))
        return _by_split(root, {word: _saved(root, word, on_fault) for word in words}, on_fault)
    if (root / "state.json").is_file():
        return _by_split(root, {"": _saved(root, "", on_fault)}, on_fault)
    names = sorted(path.relative_to(root).as_posix() for path in _below(root, DEPTH))
    _check_complete(root, names, on_fault)
    names = _one_dataset(root, names, on_fault)
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        files[_word(name)].append(name)
    return _by_split(root, files, on_fault)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The tables in the folder and the folders below it, down to the depth; none in a folder that holds an image."""
    tables, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_image(entry.name):
                return
            if entry.name.startswith(".") or entry.name == METADATA:
                continue
            if suffix(entry.name) in TABLES and entry.is_file():
                tables.append(Path(entry.path))
            elif depth and entry.is_dir():
                folders.append(Path(entry.path))
    yield from tables
    for path in folders:
        yield from _below(path, depth - 1)


def _by_split(root: Path, words: dict[str, list[str]], on_fault: OnFault) -> TableFiles:
    """The files for each split; those of other words are skipped, unless there is nothing else."""
    known = {word: SPLIT_ALIASES[word.lower()] for word in words if word.lower() in SPLIT_ALIASES}
    if not known and len(words) == 1:
        known = dict.fromkeys(words, "train")
    if not known:
        message = f"none of its splits is for training: {format_names(list(words))}"
        hint = "give one of the folders, or call one split train"
        on_fault(DataError(message, code="data.no_train_split", where=root, hint=hint))
        known = dict.fromkeys(words, "train")
    elif len(set(known.values())) < len(known):
        message = f"two of its splits are the same: {format_names(list(known))}"
        on_fault(DataError(message, code="data.ambiguous_split", where=root, hint="rename or remove one"))
    in_order = sorted(known, key=lambda word: SPLITS.index(known[word]))
    others = [name for word, names in words.items() if word not in known for name in names]
    notes = [f"left out, of no split that is used: {format_names(others)}"] if others else []
    return TableFiles([TableFile(name, known[word]) for word in in_order for name in words[word]], notes)


def _saved(root: Path, folder: str, on_fault: OnFault) -> list[str]:
    """The files that `save_to_disk` wrote into a folder; others are leftovers of `map` and `filter`."""
    path = root / folder / "state.json"
    try:
        names = _saved_names(path, folder)
    except DataError as fault:
        on_fault(fault)
        return []
    for name in names:
        if not (root / name).is_file():
            hint = f"put it back, or {SAVE_AGAIN}"
            on_fault(DataError(f"{name} is missing", code="data.missing_file", where=path, hint=hint))
    return [name for name in names if (root / name).is_file()]


def _saved_names(path: Path, folder: str) -> list[str]:
    """The files that a `state.json` lists."""
    state = _json(path)
    if state.get("_indices_data_files"):
        message, hint = "its rows are selected by a file of indices", "save it again after flatten_indices()"
        raise DataError(message, code="data.unsupported_table", where=path, hint=hint)
    entries = state.get("_data_files")
    found = [isinstance(file, dict) and file.get("filename") for file in entries] if isinstance(entries, list) else []
    return [str(PurePosixPath(folder, name)) for name in _names(path, "_data_files", found)]


def _names(path: Path, field: str, found: object) -> list[str]:
    """The names that a field lists, which must be of files or folders beside the file."""
    names = found if isinstance(found, list) else []
    if not names or not all(isinstance(name, str) and name != ".." and Path(name).name == name for name in names):
        message = f"expected names of files or folders in {field}"
        raise DataError(message, code="data.bad_index", where=path, hint=SAVE_AGAIN)
    return names


def _json(path: Path) -> dict[str, Any]:
    found = parse_json(read_bytes(path, DOCUMENT_BYTES), path, "data.bad_index", SAVE_AGAIN)
    return found if isinstance(found, dict) else {}


def _word(name: str) -> str:
    """The word for the split in the name of a file or of its folder; empty if there is none."""
    path = PurePosixPath(name)
    parts = re.split(r"[-_.]", _shard(name)["stem"].lower())
    words = (parts[0], parts[-1], path.parent.name.lower())
    return next((word for word in words if word in SPLIT_ALIASES), "")


def _shard(name: str) -> re.Match[str]:
    match = SHARD.fullmatch(PurePosixPath(name).stem)
    assert match  # the pattern matches any stem
    return match


def _check_complete(root: Path, names: list[str], on_fault: OnFault) -> None:
    """Find splits that lack files, as after an interrupted download."""
    counts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for name in names:
        shard = _shard(name)
        if shard["count"]:
            stem = PurePosixPath(name).with_name(shard["stem"]).as_posix()
            counts[stem, int(shard["count"])].append(int(shard["number"]))
    for (stem, count), numbers in counts.items():
        missing = sorted(set(range(count)) - set(numbers))
        if missing:
            absent = format_names([f"{number:05}" for number in missing])
            message = f"{len(missing)} of the {count} files of {stem} are missing: {absent}"
            on_fault(DataError(message, code="data.missing_file", where=root, hint="download them"))


def _one_dataset(root: Path, names: list[str], on_fault: OnFault) -> list[str]:
    """The files of the first dataset; several in one folder, as some on the hub are, are a fault."""
    sets: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        parent = PurePosixPath(name).parent
        sets[str(parent.parent if parent.name.lower() in SPLIT_ALIASES else parent)].append(name)
    first, *others = sorted(sets)
    if others:
        message = f"contains several datasets: {format_names([first, *others])}"
        on_fault(DataError(message, code="data.several_sets", where=root, hint="give one of these folders"))
    return sets[first]


def open_tables(path: Path, val_split: StratifiedSplit, on_fault: OnFault = refuse) -> Samples:
    """The images of a folder of tables, or of one table, all of which are then for training."""
    faults: list[DataError] = []

    def report(fault: DataError) -> None:
        faults.append(fault)
        on_fault(fault)

    alone = path.is_file()
    root = path.parent if alone else path
    files, notes = TableFiles([TableFile(path.name, "train")], []) if alone else find_tables(path, report)
    columns, labels = _read_labels(root, files, report)
    rows = [
        Row(f"{file.name}#{number:07}", name, file.split)
        for file, values in labels
        for number, value in enumerate(values)
        if (name := _class(value, columns.classes, f"{root / file.name}#{number}", report))
    ]
    if not rows and not faults:
        report(DataError("contains no rows", code="data.empty", where=path, hint="give a dataset with images"))
    store = TableStore(str(root), columns.image, outside_is_allowed())
    samples = build_samples(str(path), rows, store, val_split, notes, on_fault)
    order = columns.classes or _sorted_numbers(value for _, values in labels for value in values)
    return reorder_classes(samples, order, keep_empty=False)


def _read_labels(
    root: Path, files: list[TableFile], on_fault: OnFault
) -> tuple[Columns, list[tuple[TableFile, list[Any]]]]:
    """The columns, which are those of the first readable file, and the labels of the files that have them."""
    found: list[tuple[TableFile, Columns]] = []
    labels: list[tuple[TableFile, list[Any]]] = []
    for file in files:
        where = str(root / file.name)
        try:
            columns = choose_columns(read_schema(where), where)
            if found and columns != found[0][1]:
                message = f"its columns or classes are not those of {found[0][0].name}"
                hint = "give all files the same image and label columns, and the same classes"
                raise DataError(message, code="data.schema_mismatch", where=where, hint=hint)
            found.append((file, columns))
            labels.append((file, read_column(where, columns.label)))
        except DataError as fault:
            on_fault(fault)
    return found[0][1] if found else Columns("", "", ()), labels


def _class(value: Any, classes: tuple[str, ...], where: str, on_fault: OnFault) -> str:
    """The name of the class of a label; empty if there is none."""
    message = "no label in this row"
    if value is not None and value != "":
        if not classes:
            return str(value)
        if isinstance(value, int) and 0 <= value < len(classes):
            return classes[value]
        message = f"label {value!r} is not one of the {len(classes)} classes"
    on_fault(DataError(message, code="data.bad_label", where=where, hint="correct the label, or remove the row"))
    return ""


def _sorted_numbers(values: Iterable[Any]) -> tuple[str, ...]:
    """Labels that are all numbers, in numeric order: 2 before 10."""
    distinct = set(values)
    return tuple(map(str, sorted(distinct))) if all(isinstance(value, int) for value in distinct) else ()
