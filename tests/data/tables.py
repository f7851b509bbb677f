"""Parquet and Arrow files as `datasets` of Hugging Face writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.pictures import encoded, noise

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CLASSES = ("cat", "ant", "bee")  # in no order of names


def picture(number: int) -> bytes:
    """A PNG that no other number gives."""
    return encoded(noise(9, 8, 3, seed=number).astype(np.uint8), "PNG")


def cell(number: int) -> dict[str, Any]:
    return {"bytes": picture(number), "path": f"{number}.png"}


def features(classes: Sequence[str] = CLASSES, **others: dict[str, Any]) -> dict[str, Any]:
    """What `datasets` notes of a column of images and one of labels with names."""
    return {"image": {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}, **others}


def noted(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    """The table with that note in its schema."""
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": columns}})})


def table(numbers: Sequence[int], labels: Sequence[int], classes: Sequence[str] = CLASSES) -> pa.Table:
    """A row for each number: its picture and its label."""
    columns = {"image": pa.array(map(cell, numbers), IMAGE), "label": pa.array(labels, pa.int64())}
    return noted(pa.table(columns), features(classes))


def write_table(path: Path, content: pa.Table, rows: int = 2) -> Path:
    """The table as Parquet or as a stream of Arrow, as the name says, in groups of so many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(content, path, row_group_size=rows)
        return path
    with pa.ipc.new_stream(path, content.schema) as stream:
        stream.write_table(content, max_chunksize=rows)
    return path


def save_to_disk(folder: Path, *parts: pa.Table) -> None:
    """A data set without splits, as `Dataset.save_to_disk` leaves it."""
    names = [f"data-{number:05}-of-{len(parts):05}.arrow" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        write_table(folder / name, part)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "16bb200fdfa54b9e", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features()}))


def save_splits_to_disk(folder: Path, **splits: Sequence[pa.Table]) -> None:
    """A data set with splits, as `DatasetDict.save_to_disk` leaves it."""
    for word, parts in splits.items():
        save_to_disk(folder / word, *parts)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
