"""Checkpoints that cannot be lost.

    checkpoints/step-00000500/
        manifest.json       the format, the step, and the size and SHA-256 of every other file
        state.json          what is no tensor
        model.safetensors   tensors by name, in as many files as the caller likes
        shard-1-of-2.safetensors    or parts of all tensors, those that one of two processes had

A checkpoint is written as `step-00000500.tmp-<process>` and gets its name once all of it is on the disk; one that is
removed loses its name first. So whatever ends a process, and whenever, what has the name is whole. What happens to the
bytes later is seen by their hashes. A run takes the lock, sweeps, looks for the newest, and then saves.

`manifest.json`: what the files of a folder must be, to the byte.
Saving beside the training: the step waits for a copy in memory, not for the disk.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from vitral.core.config import Config
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.storage import Digest, Disk, failure, reading, reason
from vitral.training.checkpoints.shards import assembled
from vitral.weights.tensors import pieces, read

MANIFEST = "manifest.json"


class Entry(Config):
    """What a file must be."""

    size: int
    sha256: str


class Manifest(Config):
    """What a checkpoint must hold; files that it does not name are nobody's."""

    format: Literal[1] = 1
    step: int
    files: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], Entry]


def manifest_of(step: int, digests: Mapping[str, Digest]) -> Manifest:
    """The manifest of files that were just written."""
    return Manifest(step=step, files={name: Entry(**digest._asdict()) for name, digest in digests.items()})


def verify(folder: Path) -> Manifest:
    """The manifest in a folder, once every byte of the files that it names is found to be right; else WeightsError."""
    manifest = _read(folder / MANIFEST)
    for name, entry in manifest.files.items():
        path = folder / name
        with reading(path):
            size = path.stat().st_size
            if size != entry.size:
                message = f"has {size:,} bytes, and {entry.size:,} were written"
                raise WeightsError(message, code="weights.corrupt", where=str(path))
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    message = "its bytes are not those that were written"
                    raise WeightsError(message, code="weights.corrupt", where=str(path))
    return manifest


def _read(path: Path) -> Manifest:
    with reading(path):
        text = path.read_bytes()
    try:
        manifest = Manifest.from_json(text)
    except ConfigError as error:
        message = f"not a manifest that this vitral can read: {error}"
        raise WeightsError(message, code="weights.corrupt", where=str(path)) from None
    # Nothing vouches for the manifest but its form, so that must be right to the byte.
    if manifest.to_json().encode() != text:
        raise WeightsError("not as vitral writes a manifest", code="weights.corrupt", where=str(path))
    return manifest


STATE = "state.json"
SUFFIX = ".safetensors"
SHARD = re.compile(r"shard-[0-9]+-of-[0-9]+")
DRAFT = ".tmp-"  # between the name and the process that gives it, or takes it away
DISK = Disk()
REMEDY = "remove the folder that it is in: the checkpoint before it is then used"


class Loaded(NamedTuple):
    """What was handed to `save`: tensors by group and name, and the rest."""

    tensors: dict[str, dict[str, Tensor]]
    state: JsonValue


class Checkpoint(NamedTuple):
    """A checkpoint that was whole when it was opened."""

    path: Path
    step: int
    stems: tuple[str, ...]

    def load(self) -> Loaded:
        """Read it. Whole tensors are mapped from the disk; changing them changes no file."""
        tensors = {stem: read(self.file(stem), REMEDY) for stem in self.stems if not SHARD.fullmatch(stem)}
        return Loaded(grouped(assembled(self.shards)) | tensors, self.state())

    @property
    def shards(self) -> list[Path]:
        """The files of processes that had a part of every tensor; none if it was written by one."""
        return [self.file(stem) for stem in self.stems if SHARD.fullmatch(stem)]

    def file(self, stem: str) -> Path:
        return self.path / f"{stem}{SUFFIX}"

    def state(self) -> JsonValue:
        """What is no tensor."""
        with reading(self.path / STATE):
            text = (self.path / STATE).read_bytes()
        state: JsonValue = json.loads(text)
        return state


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors that are named `group/name`, by group and name."""
    groups: dict[str, dict[str, Tensor]] = {}
    for address, tensor in tensors.items():
        group, _, name = address.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


class Found(NamedTuple):
    """The newest whole checkpoint, and why each newer one is not: the file and what is wrong with it."""

    checkpoint: Checkpoint | None
    passed_over: tuple[str, ...]


def newest(folder: Path) -> Found:
    """The newest checkpoint of a folder that is whole."""
    passed_over: list[str] = []
    try:
        steps = _steps(folder)
    except OSError as error:
        return Found(None, (f"{folder}: cannot be read: {reason(error)}",))
    for step in reversed(steps):
        try:
            return Found(open_checkpoint(folder / _name(step)), tuple(passed_over))
        except WeightsError as error:
            passed_over.append(str(error))
    return Found(None, tuple(passed_over))


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is, if there is one."""
    return folder / _name(step)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder `step-...`, once every byte of it is found to be right; else WeightsError."""
    manifest = verify(path)
    if _name(manifest.step) != path.name.partition(DRAFT)[0]:
        message = f"of step {manifest.step}, unlike the folder"
        raise WeightsError(message, code="weights.corrupt", where=str(path / MANIFEST))
    if STATE not in manifest.files:
        raise WeightsError(f"names no {STATE}", code="weights.corrupt", where=str(path / MANIFEST))
    stems = tuple(name.removesuffix(SUFFIX) for name in manifest.files if name.endswith(SUFFIX))
    return Checkpoint(path, manifest.step, stems)


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: JsonValue,
    keep: int,
    best: int | None,
    disk: Disk = DISK,
) -> Path:
    """Write a checkpoint, then remove all but the newest `keep` and the one of the best step.

    Those of later steps, which a run that went back to an earlier one has left, stay until it comes by.
    """
    with writing(folder):
        draft = begin(folder, step, disk)
        try:
            contents = {f"{stem}{SUFFIX}": pieces(group) for stem, group in tensors.items()}
            digests = {name: disk.write(draft / name, content) for name, content in contents.items()}
            return conclude(draft, digests, state, keep, best, disk)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def begin(folder: Path, step: int, disk: Disk) -> Path:
    """A new draft of a checkpoint, for files to be written to."""
    draft = folder / f"{_name(step)}{DRAFT}{os.getpid()}"
    if not folder.exists():
        disk.make(folder)
    disk.remove(draft)
    disk.make(draft)
    return draft


def conclude(
    draft: Path, digests: Mapping[str, Digest], state: JsonValue, keep: int, best: int | None, disk: Disk
) -> Path:
    """Complete a draft that has these files, give it its name, and remove what need not be kept."""
    assert keep >= 1
    final = draft.with_name(draft.name.partition(DRAFT)[0])
    step = int(final.name.removeprefix("step-"))
    written = disk.write(draft / STATE, [memoryview(json.dumps(state).encode())])
    manifest = manifest_of(step, {**digests, STATE: written})
    disk.write(draft / MANIFEST, [memoryview(manifest.to_json().encode())])
    disk.flush(draft)
    disk.exchange(draft, final, aside=draft.with_name(f"{draft.name}-old"))
    past = [known for known in _steps(final.parent) if known <= step]
    for known in set(past[:-keep]) - {best}:
        _remove(final.with_name(_name(known)), disk)
    return final


def sweep(folder: Path, disk: Disk = DISK) -> None:
    """Clear up after writers that were killed: what they left whole gets its name, what they left half is removed.

    Only who holds the lock of the run may do that.
    """
    with writing(folder):
        for leftover in (folder / name for name in _names(folder) if re.match(rf"step-[0-9]+{re.escape(DRAFT)}", name)):
            final = folder / leftover.name.partition(DRAFT)[0]
            try:
                whole = not final.exists() and open_checkpoint(leftover)
            except WeightsError:
                whole = False
            if whole:
                for file in leftover.iterdir():
                    disk.flush(file)
                disk.flush(leftover)
                disk.rename(leftover, final)
            else:
                disk.remove(leftover)


def _remove(path: Path, disk: Disk) -> None:
    nameless = path.with_name(f"{path.name}{DRAFT}{os.getpid()}")
    disk.rename(path, nameless)
    disk.remove(nameless)


def _name(step: int) -> str:
    return f"step-{step:08}"


def _steps(folder: Path) -> list[int]:
    """The steps of all checkpoints that have a name, whole or not, from the oldest."""
    matches = (re.fullmatch(r"step-([0-9]{8,})", name) for name in _names(folder))
    return sorted(step for match in matches if match and _name(step := int(match[1])) == match[0])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:  # nothing was saved yet
        return []


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Tell what failed, how to mend it, and which checkpoint there is to go on from."""
    try:
        yield
    except OSError as error:
        last = newest(folder).checkpoint
        kept = f"the checkpoint {last.path} is whole" if last else "there is no whole checkpoint"
        raise failure(error, folder, kept) from error


class Keeper(Protocol):
    """What saves a run."""

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Begin to save what the tensors and the state are now."""
        ...

    def wait(self) -> None:
        """Return once it is saved, or raise what went wrong."""
        ...

    def close(self) -> None:
        """The same, for the last time."""
        ...


class Idle:
    """For a process that leaves the saving to another."""

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        return

    def wait(self) -> None:
        return

    def close(self) -> None:
        return


class Saver:
    """Writes checkpoints in a thread, one at a time, so there is never more than one copy of the state.

    An error in writing is raised by the next call of any method.
    """

    def __init__(self, folder: Path, keep: int, disk: Disk = DISK) -> None:
        self.folder, self.keep, self.disk = folder, keep, disk
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        self._writing: Future[Path] | None = None

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Begin to write what the tensors and the state are now; if the one before is not yet written, wait for it."""
        self.wait()
        copies = {stem: {name: _copy(tensor) for name, tensor in group.items()} for stem, group in tensors.items()}
        self._writing = self._thread.submit(
            save, self.folder, step, copies, deepcopy(state), self.keep, best, disk=self.disk
        )

    def wait(self) -> None:
        """Return once all that was handed over is on the disk. Best called before processes are forked."""
        if self._writing is not None:
            error = self._writing.exception()
            self._writing = None  # not before, so that an interrupt of the wait forgets no error
            if error is not None:
                raise error

    def close(self) -> None:
        """Finish what was begun and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _copy(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
