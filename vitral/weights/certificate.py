"""certificate.json: what a conversion compared, and every tensor whose bits changed."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Literal

import torch
from pydantic_core import from_json
from torch import Tensor

from vitral import __version__
from vitral.core.config import Config
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.files import read_file
from vitral.core.storage import wrap_read_errors
from vitral.weights.oracles.oracle import ModelOutputs

CERTIFICATE_FILE = "certificate.json"
FORMAT = 2  # certificates of format 1 have no number, and none of the fields that have a default here
TOLERANCE = 1e-4  # of outputs, relative to the largest of them where that is more than 1
NOT_RUN = "none: "  # how the field of a library begins that was not run
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers of so many bytes
SHOWN = 5  # tensors that a line of text names


class CertifiedFile(Config):
    """A file of weights."""

    software: str
    file: str  # its name alone: a certificate may be published with the weights
    sha256: str


class Difference(Config):
    """The largest absolute difference between two outputs for the same images."""

    tokens: float
    logits: float | None  # null without a head
    relative: float | None = None  # the larger of both, each relative to the largest output where that is more than 1

    @property
    def largest(self) -> float:
        """What the tolerance limits."""
        return max(self.tokens, self.logits or 0.0) if self.relative is None else self.relative

    def describe(self) -> str:
        """Both numbers as text."""
        logits = "" if self.logits is None else f", logits by at most {self.logits:.1e}"
        return f"tokens differ by at most {self.tokens:.1e}{logits}"


class TensorChange(Config):
    """A tensor whose bits are not those of the file that was read."""

    name: str  # in the file that was read, or ours if it changed in writing
    values: int  # that differ
    of: int  # values in all
    largest: float  # absolute difference
    shape: str = ""  # how it changed, if it did

    def describe(self) -> str:
        """The change as text."""
        if self.shape:
            return f"{self.name}: {self.shape}"
        return f"{self.name}: {self.values:,} of {self.of:,} values changed, by at most {self.largest:.1e}"


class Certificate(Config):
    """What was compared, and the differences."""

    format: Literal[2] = 2
    vitral: str = __version__
    torch: str = torch.__version__
    images: str  # the input of all
    read: CertifiedFile
    source_library: str = f"{NOT_RUN}not recorded"  # that ran the file that was read, and its version, or why none did
    source: Difference | None = None  # our outputs, against the source library's for the file that was read
    changed: tuple[str, ...] = ()  # what differs between what was read and what was written, a sentence each
    tensors: tuple[TensorChange, ...] = ()  # those whose bits changed
    dropped: tuple[str, ...] = ()  # tensors of the file that was read and are not part of the model
    rules: str = ""  # of the user, for a layout that no format knows, as JSON
    written: CertifiedFile
    library: str  # the target library and its version, or why none was run
    theirs: Difference | None  # our outputs before, against the target library's
    again: Difference  # our outputs before, against those of the written files read back
    untold: tuple[str, ...]  # what the files cannot record

    def lines(self) -> list[str]:
        """The certificate as text."""
        more = f"; and {len(self.changed) - SHOWN} more, in {CERTIFICATE_FILE}" if len(self.changed) > SHOWN else ""
        changed = [f"changed: {'; '.join(self.changed[:SHOWN])}{more}"] if self.changed else []
        mapped = [f"mapped by rules of the user, {len(self.dropped)} tensors dropped"] if self.rules else []
        return [
            *mapped,
            describe_library("the source library", self.source_library, self.source),
            describe_library("the target library", self.library, self.theirs),
            f"read back: {self.again.describe()}",
            *changed,
            *self.untold,
        ]


def describe_library(role: str, library: str, difference: Difference | None) -> str:
    """A line about a library that was run, or why it was not."""
    if difference is None:
        return f"not compared with {role}: {library.removeprefix(NOT_RUN)}"
    return f"{role}, {library}: {difference.describe()}"


def read_certificate(path: str | Path) -> Certificate:
    """The certificate in a folder, or in a file, of any format."""
    file = Path(path).expanduser()
    file = file / CERTIFICATE_FILE if file.is_dir() else file
    with wrap_read_errors(file):
        text = read_file(file)
    try:
        data = from_json(text)
        if isinstance(data, dict) and int(data.get("format", 1)) <= FORMAT:
            return Certificate.parse(data | {"format": FORMAT})
        found = f"format {data.get('format')}, expected at most {FORMAT}" if isinstance(data, dict) else "no object"
    except (ValueError, TypeError, ConfigError) as error:
        found = str(error)
    raise WeightsError(f"not a certificate that is known here: {found}", code="weights.bad_config", where=file)


def output_difference(one: ModelOutputs, other: ModelOutputs) -> Difference:
    """The largest differences between two outputs; WeightsError where they cannot be compared.

    Tokens are compared by that definition of the other model which is nearest: a pool that normalizes the mean has the
    last norm in some libraries, and comes after it in others.
    """
    differences, ratios = list[float](), list[float]()
    near = [each for each in (other.tokens, *other.others) if each.shape == one.tokens.shape]
    pairs = [(one.tokens, min(near, key=lambda each: float((one.tokens - each).abs().max()), default=other.tokens))]
    if one.logits is not None and other.logits is not None:
        pairs.append((one.logits, other.logits))
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            message = f"the outputs have other shapes: {tuple(ours.shape)} here, {tuple(theirs.shape)} there"
            raise WeightsError(message, code="weights.conversion_differs")
        largest = float((ours - theirs).abs().max())
        if not isfinite(largest):
            raise WeightsError("the outputs are infinite or NaN", code="weights.conversion_differs")
        differences.append(largest)
        ratios.append(largest / max(1.0, float(ours.abs().max())))
    logits = differences[1] if len(differences) > 1 else None
    return Difference(tokens=differences[0], logits=logits, relative=max(ratios))


def tensor_changes(before: Mapping[str, Tensor], after: Iterator[tuple[str, Tensor]]) -> Iterator[TensorChange]:
    """The tensors whose bits differ; of another dtype, those whose values do."""
    for name, found in after:
        if name not in before:
            continue
        old, new = before[name].detach(), found.detach()
        if old.dtype != new.dtype:
            old, new = old.float(), new.float()
        if old.shape != new.shape:
            shape = f"shape {tuple(old.shape)} became {tuple(new.shape)}"
            yield TensorChange(name=name, values=old.numel(), of=old.numel(), largest=0.0, shape=shape)
            continue
        changed = old.contiguous().view(BITS[old.element_size()]) != new.contiguous().view(BITS[new.element_size()])
        if count := int(changed.sum()):
            largest = float((old.float() - new.float()).abs().max())
            yield TensorChange(name=name, values=count, of=old.numel(), largest=largest)


def added_tensor(name: str, tensor: Tensor) -> TensorChange:
    """A tensor of zeros that the file that was read does not have."""
    shape = f"new, zeros of shape {tuple(tensor.shape)}"
    return TensorChange(name=name, values=tensor.numel(), of=tensor.numel(), largest=0.0, shape=shape)


def combined_tensors(given: Mapping[str, Tensor], used: Mapping[str, Tensor]) -> Iterator[TensorChange]:
    """The tensors of a file that were combined before they became ours, such as a norm that is part of a head.

    What only has another name or shape lies in the same memory.
    """
    starts = sorted(tensor.data_ptr() for tensor in used.values())
    for name, tensor in given.items():
        first = bisect_left(starts, tensor.data_ptr())
        if first < len(starts) and starts[first] < tensor.data_ptr() + max(1, tensor.nbytes):
            continue
        if not any(name.endswith(other) and _same_values(tensor, each) for other, each in used.items()):
            count, shape = tensor.numel(), "combined with others on reading"
            yield TensorChange(name=name, values=count, of=count, largest=0.0, shape=shape)


def _same_values(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.float().flatten(), other.float().flatten())
