"""Tensors in files: safetensors, written in chunks, and torch's pickles, of which only the weights are read.

The safetensors library would copy all tensors once more to write them, and does not report a full disk as an OSError.
"""

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import safe_globals

from vitral.core.errors import WeightsError
from vitral.core.files import check_file, open_file
from vitral.core.storage import weights_read_error, wrap_read_errors
from vitral.weights.containers import StateDict, select_state_dict

CHUNK_BYTES = 2**24  # few enough that other threads do not wait
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".pt.tar")
COLORS = re.compile(r"\x1b\[[0-9;]*m")  # in torch's messages
CODE = re.compile(r"GLOBAL (\S+)")  # how torch names what a pickle would have called
NUMPY_SCALAR = np.float64().__reduce__()[0]  # makes a number of numpy
# What training scripts save beside the weights: their arguments, and numbers of numpy, under old names too. None of it
# runs anything.
PLAIN_RECORDS: list[Any] = [
    Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4", "?")),
    (NUMPY_SCALAR, "numpy._core.multiarray.scalar"),
    (NUMPY_SCALAR, "numpy.core.multiarray.scalar"),
]
MAX_HEADER = 4 * 2**20  # bytes of the header of a safetensors file
NO_METADATA: Mapping[str, str] = {}
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def safetensors_chunks(tensors: Mapping[str, Tensor], notes: Mapping[str, str] = NO_METADATA) -> Iterator[memoryview]:
    """The bytes of a safetensors file of these tensors and metadata, independent of the order of the names."""
    # The widest dtype first, so that each tensor is aligned; a reader maps them where they are.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(notes)} if notes else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in order:
        data = tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        yield from (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))


def tensor_names(path: Path) -> list[str]:
    """The names of the tensors in a safetensors file, without reading them."""
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise _unreadable(error, path, "") from None


def read_safetensors(path: Path, hint: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped; changing them does not change the file.

    The hint says what to do if the file is damaged.
    """
    try:
        _check_header(path)
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(error, path, hint) from None


def _check_header(path: Path) -> None:
    """Refuse a header that takes long to parse: that of a model of 10,000 tensors has a megabyte."""
    with open_file(path) as file:
        size, left = int.from_bytes(file.read(8), "little"), check_file(path) - 8
    if MAX_HEADER < size <= left:  # if there is less, it is damaged
        message = f"a header of {size:,} bytes, the limit is {MAX_HEADER:,}"
        raise WeightsError(message, code="weights.too_large", where=path, hint="write fewer tensors to a file")


def _unreadable(error: SafetensorError | OSError, path: Path, hint: str) -> WeightsError:
    if isinstance(error, OSError):
        return weights_read_error(error, path)
    return WeightsError(f"not a readable safetensors file: {error}", code="weights.corrupt", where=path, hint=hint)


def is_pickle(path: Path) -> bool:
    """Whether a file is one of torch's pickles, by its name."""
    return path.name.lower().endswith(PICKLES)


def read_torch_pickle(path: Path, key: str = "") -> StateDict:
    """A state dict, alone or in what training scripts wrap around one, there under a key; no code is run."""
    return select_state_dict(read_pickle(path), key, path)


def read_pickle(path: Path) -> object:
    """All that a file holds, if that is tensors and plain values; no code is run."""
    with wrap_read_errors(path):
        check_file(path)
    try:
        with safe_globals(PLAIN_RECORDS):
            found: object = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch reports a bad file in many ways
        message = f"holds more than weights, or is damaged: {_pickle_error(error)}"
        code = "weights.unsafe_pickle" if CODE.search(str(error)) else "weights.corrupt"
        hint = "save its state dict as safetensors where it was made, and give that"
        raise WeightsError(message, code=code, where=path, hint=hint) from None
    return found


def _pickle_error(error: Exception) -> str:
    """Torch's message without its advice, which is to run what the file holds."""
    text = COLORS.sub("", str(error)).strip()
    if called := CODE.search(text):
        return f"it calls {called[1]}, which was not run"
    lines = [line for line in text.splitlines() if "weights_only" not in line]
    return next(filter(None, map(str.strip, lines)), type(error).__name__)
