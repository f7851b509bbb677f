"""An export opened again, by what its notes say of it; torch has no part in that.

B images, H x W pixels, C channels, K numbers.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from vitral import __version__
from vitral.deploy.engine import Bytes, Engine, Numbers, in_batches
from vitral.deploy.engines.kind import Threads, count_of
from vitral.deploy.engines.onnxruntime import OnnxRuntimeEngine, Session, session
from vitral.deploy.engines.openvino import OpenVinoEngine, compiled
from vitral.deploy.exported import FILE, FORMAT, MODELS, Export, Kind
from vitral.errors import ConfigError, WeightsError
from vitral.weights.refusal import reading

ENGINES: dict[Kind, str] = {"onnx": "onnxruntime", "openvino": "openvino"}
AGAIN = "copy the export again, or make it anew: vitral export"


def is_export(path: Path) -> bool:
    """Whether this is a folder of `vitral export`."""
    return os.path.isfile(path / FILE)  # false too where the system would not even look


def read_export(folder: Path) -> Export:
    """What an export says of itself; refused where its files are others, or where a predictor cannot use it."""
    path = folder / FILE
    with reading(path):
        text = path.read_bytes()
    try:
        data = from_json(text)
    except ValueError as error:
        raise WeightsError(f"not JSON: {error}", code="weights.bad_config", where=str(path), remedy=AGAIN) from None
    _check_format(data, path)
    try:
        notes = Export.from_json(text)
    except ConfigError as error:
        raise WeightsError(str(error), code="weights.bad_config", where=str(path), remedy=AGAIN) from None
    _refuse_useless(notes, folder)
    for file in notes.files:
        with reading(folder / file.name):
            size = (folder / file.name).stat().st_size
        if size != file.bytes:
            what = f"has {size:,} bytes, and {file.bytes:,} were written"
            raise WeightsError(what, code="weights.corrupt", where=str(folder / file.name), remedy=AGAIN)
    return notes


def engine_of(folder: Path, notes: Export, threads: Threads = "torch") -> Engine:
    """An export as an engine for any number of images."""
    path, batch = folder / MODELS[notes.kind], notes.input.shape[0]
    outputs, count = notes.width, count_of(threads)
    if isinstance(batch, int) and batch > 1:
        whole = Session(session(path, count)) if notes.kind == "onnx" else compiled(path)
        return InBatches(whole, batch, outputs)
    return OnnxRuntimeEngine(path, count) if notes.kind == "onnx" else OpenVinoEngine(path, outputs, count)


@dataclass(frozen=True)
class InBatches:
    """An engine that takes so many images at a time and no other number, for any number of them."""

    engine: Engine
    batch: int
    outputs: int

    def run(self, pixels: Bytes) -> Numbers:
        if not len(pixels):
            return np.zeros((0, self.outputs), dtype=np.float32)
        return in_batches(self.engine, pixels, self.batch)  # (B, K)


def _check_format(data: Any, path: Path) -> None:
    """Refuse what no vitral wrote, and what a later one did: its other fields are not to be judged here."""
    found = data.get("format") if isinstance(data, dict) else None
    if type(found) is not int:
        what = f"not of an export of vitral: its format is {found!r}, expected a whole number"
        raise WeightsError(
            what, code="weights.unknown_format", where=str(path), remedy="give a folder of vitral export"
        )
    if found > FORMAT:
        what = f"an export of format {found}, written by vitral {data.get('vitral')}; expected at most {FORMAT}"
        remedy = f"pip install 'vitral>={data.get('vitral')}' (this one is {__version__})"
        raise WeightsError(what, code="weights.newer_version", where=str(path), remedy=remedy)


def _refuse_useless(notes: Export, folder: Path) -> None:
    """Refuse what a predictor cannot use, though it may be whole."""
    if notes.kind not in ENGINES:
        what, remedy = "an export for torch, which is for its run.py", "give the model that it was made of"
        raise WeightsError(what, code="weights.unsupported", where=str(folder), remedy=remedy)
    if notes.input.shape[1:3] != tuple(notes.preprocessing.image):
        what = "an export that resizes pictures by itself, which is for its run.py"
        raise WeightsError(
            what, code="weights.unsupported", where=str(folder), remedy="export the model without --image"
        )
    numbers = notes.output.shape[-1]
    if not isinstance(numbers, int) or (notes.answer == "logits" and numbers != len(notes.classes)):
        what = f"tells of {numbers} numbers an answer and {len(notes.classes)} classes, which do not go together"
        raise WeightsError(what, code="weights.bad_config", where=str(folder / FILE), remedy=AGAIN)
