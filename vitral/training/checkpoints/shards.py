"""Tensors whose parts lie in several files, as processes that share a model write them.

Each file is safetensors; its notes say where in the whole tensor each part begins, in the words of torch's distributed
checkpoints, whose `HuggingFaceStorageReader` reads these files too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.weights.tensors import NAMES

NOTE, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
REMEDY = "remove the folder that it is in: the checkpoint before it is then used"
TYPES = {name: dtype for dtype, name in NAMES.items()}


class Chunk(NamedTuple):
    """A part of a tensor: which, from where on, and the file that it is in."""

    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    path: Path

    @property
    def end(self) -> tuple[int, ...]:
        """One past its last place in the whole tensor, along each side."""
        return tuple(start + length for start, length in zip(self.offsets, self.shape, strict=True))


def note(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """What a file says of where its parts begin."""
    return {NOTE: json.dumps({name: {OFFSETS: list(begin)} for name, begin in sorted(offsets.items())})}


def chunks(path: Path) -> list[Chunk]:
    """The parts in a file; a file without a note holds whole tensors."""
    with _opened(path) as file:
        begins = json.loads((file.metadata() or {}).get(NOTE, "{}"))
        found = []
        for name in file.keys():  # noqa: SIM118, it is no mapping
            part = file.get_slice(name)
            shape = tuple(part.get_shape())
            begin = begins.get(name, {}).get(OFFSETS, (0,) * len(shape))
            found.append(Chunk(name, tuple(begin), shape, TYPES[part.get_dtype()], path))
    return found


def shape_of(parts: Iterable[Chunk]) -> tuple[int, ...]:
    """The shape of the tensor that these are the parts of."""
    return tuple(max(sides) for sides in zip(*(part.end for part in parts), strict=True))


def assembled(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The whole tensors of which parts are in these files."""
    parts: dict[str, list[Chunk]] = {}
    for path in paths:
        for chunk in chunks(path):
            parts.setdefault(chunk.name, []).append(chunk)
    whole = {name: torch.empty(shape_of(some), dtype=some[0].dtype) for name, some in parts.items()}
    for name, some in parts.items():
        there = sum(prod(chunk.shape) for chunk in some)
        if there != whole[name].numel():
            message = f"parts of {name} are missing, {there} of {whole[name].numel()} numbers are there"
            raise WeightsError(message, code="weights.missing_tensor", where=str(some[-1].path), hint=REMEDY)
    for path in {chunk.path for some in parts.values() for chunk in some}:
        with _opened(path) as file:
            for chunk in (chunk for some in parts.values() for chunk in some if chunk.path == path):
                place = tuple(slice(*ends) for ends in zip(chunk.offsets, chunk.end, strict=True))
                whole[chunk.name][place] = file.get_tensor(chunk.name)
    return whole


def part(chunk: Chunk, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """A box within a part, counted from where the part begins."""
    box = tuple(slice(start, start + length) for start, length in zip(offsets, lengths, strict=True))
    with _opened(chunk.path) as file:
        if not box:
            return file.get_tensor(chunk.name)
        return file.get_slice(chunk.name)[box]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        message = f"not a readable safetensors file: {error}"
        raise WeightsError(message, code="weights.corrupt", where=str(path), hint=REMEDY) from None
