"""Sharded tensors: each process of an FSDP run writes its chunk of every tensor into a safetensors file of its own.

The metadata of a file says where in the full tensor each chunk begins, under the key of `torch.distributed.checkpoint`,
whose `HuggingFaceStorageReader` opens these files too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitral.core.errors import WeightsError

METADATA_KEY, OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"
HINT = "remove this checkpoint folder: the previous checkpoint is then used"


def offsets_metadata(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The metadata of a file whose chunks begin at these offsets."""
    return {METADATA_KEY: json.dumps({name: {OFFSETS_KEY: list(start)} for name, start in sorted(offsets.items())})}


def assemble_tensors(paths: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    """The full tensors whose chunks are in these files, one after the other; WeightsError if chunks are missing.

    A tensor without an offset in its file is a full one.
    """
    with ExitStack() as stack:
        sources: dict[str, list[tuple[Any, Sequence[int] | None]]] = {}
        for path in paths:
            file = stack.enter_context(_open(path))
            offsets = json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))
            for name in file.keys():  # noqa: SIM118, a safetensors file is not a mapping
                sources.setdefault(name, []).append((file, offsets.get(name, {}).get(OFFSETS_KEY)))
            last = path
        for name, chunks in sources.items():
            tensor = _assemble([(file.get_tensor(name), start) for file, start in chunks])
            if tensor is None:
                message = f"chunks of tensor {name} are missing"
                raise WeightsError(message, code="weights.missing_tensor", where=last.parent, hint=HINT)
            yield name, tensor


def _assemble(chunks: Sequence[tuple[Tensor, Sequence[int] | None]]) -> Tensor | None:
    """The tensor that chunks with these offsets make up, or None if they do not fill it."""
    boxes = [
        tuple(slice(begin, begin + size) for begin, size in zip(start or [0] * chunk.ndim, chunk.shape, strict=True))
        for chunk, start in chunks
    ]
    shape = [max(side.stop for side in sides) for sides in zip(*boxes, strict=True)]
    full = torch.empty(shape, dtype=chunks[0][0].dtype)
    if sum(chunk.numel() for chunk, _ in chunks) != full.numel():
        return None
    for box, (chunk, _) in zip(boxes, chunks, strict=True):
        full[box] = chunk
    return full


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except WeightsError:  # a ValueError, too
        raise
    except (SafetensorError, OSError, ValueError) as error:
        message = f"not a readable safetensors file: {error}"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=HINT) from None
