"""Tensors in a safetensors file, written piece by piece.

The library that reads them here would write them too, but only after it has copied all of them once more, and a full
disk is then not told as an OSError.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from vitral.core.errors import WeightsError

CHUNK_BYTES = 2**24  # bytes; few enough that the other threads are not kept waiting
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
    """The bytes of a safetensors file of these tensors and notes: the same bytes whatever the order of the names."""
    # The widest first, so that each begins at a multiple of its width; a reader maps them where they are.
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
    """The names of the tensors in a safetensors file, none of which is read."""
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise _unreadable(error, path, "") from None


def read_safetensors(path: Path, hint: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped from the disk as they are used; changing them leaves it as it is.

    The remedy is what to do should the file be damaged.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(error, path, hint) from None


def _unreadable(error: SafetensorError | OSError, path: Path, hint: str) -> WeightsError:
    code = "weights.corrupt"
    if isinstance(error, OSError):
        code = "weights.not_found" if isinstance(error, FileNotFoundError) else "weights.unreadable"
    return WeightsError(f"not a readable safetensors file: {error}", code=code, where=path, hint=hint)
