"""Checkpoints that survive a crash at any instant.

    checkpoints/step-00000500/
        manifest.json       the format, the step, and the size and SHA-256 of every other file
        state.json          everything that is not a tensor
        model.safetensors   tensors by name, one file a group
        shard-1-of-2.safetensors    or the chunks of all tensors that one of two processes has

A checkpoint is written as `step-00000500.tmp-<pid>` and renamed once all its files are flushed to disk; a checkpoint is
renamed before it is removed. So a folder with the final name is complete whenever the process ends, and the hashes find
later damage. A run takes the lock, recovers drafts, finds the newest checkpoint, and then saves in a background thread.
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
from vitral.core.storage import FileDigest, Storage, os_error_message, wrap_read_errors, write_error
from vitral.training.checkpoints.shards import assemble_tensors
from vitral.weights.tensors import read_safetensors, safetensors_chunks

MANIFEST = "manifest.json"


class FileEntry(Config):
    """The expected size and hash of a file."""

    size: int
    sha256: str


class Manifest(Config):
    """The files of a checkpoint; others in the folder are ignored."""

    format: Literal[1] = 1
    step: int
    files: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], FileEntry]


def build_manifest(step: int, digests: Mapping[str, FileDigest]) -> Manifest:
    """The manifest of files with these digests."""
    return Manifest(step=step, files={name: FileEntry(**digest._asdict()) for name, digest in digests.items()})


def verify(folder: Path) -> Manifest:
    """The manifest of a folder whose files all have the expected size and hash; else WeightsError."""
    manifest = _read(folder / MANIFEST)
    for name, entry in manifest.files.items():
        path = folder / name
        with wrap_read_errors(path):
            size = path.stat().st_size
            if size != entry.size:
                message = f"truncated or extended: {size:,} bytes, expected {entry.size:,}"
                raise WeightsError(message, code="weights.corrupt", where=path)
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    message = "damaged: its SHA-256 is not the one in the manifest"
                    raise WeightsError(message, code="weights.corrupt", where=path)
    return manifest


def _read(path: Path) -> Manifest:
    with wrap_read_errors(path):
        text = path.read_bytes()
    try:
        manifest = Manifest.from_json(text)
    except ConfigError as error:
        message = f"not a valid manifest: {error}"
        raise WeightsError(message, code="weights.corrupt", where=path) from None
    # No hash covers the manifest itself, so its text must be exactly what vitral writes.
    if manifest.to_json().encode() != text:
        raise WeightsError("damaged: not the text that vitral writes", code="weights.corrupt", where=path)
    return manifest


STATE = "state.json"
SUFFIX = ".safetensors"
SHARD = re.compile(r"shard-[0-9]+-of-[0-9]+")
DRAFT_SUFFIX = ".tmp-"  # followed by the process id
STORAGE = Storage()
HINT = "remove this checkpoint folder: the previous checkpoint is then used"


class CheckpointContents(NamedTuple):
    """What was saved: tensors by group and name, and the JSON state."""

    tensors: dict[str, dict[str, Tensor]]
    state: JsonValue


class Checkpoint(NamedTuple):
    """A checkpoint that was complete when it was opened."""

    path: Path
    step: int
    stems: tuple[str, ...]

    def load(self) -> CheckpointContents:
        """Read everything. Full tensors are memory-mapped copy-on-write."""
        groups: dict[str, dict[str, Tensor]] = {stem: {} for stem in self.stems if not SHARD.fullmatch(stem)}
        for group, name, tensor in self.tensors():
            groups.setdefault(group, {})[name] = tensor
        return CheckpointContents(groups, self.state())

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Group, name and tensor, one after the other; shards are assembled into full tensors."""
        for stem in (stem for stem in self.stems if not SHARD.fullmatch(stem)):
            for name, tensor in read_safetensors(self.file(stem), HINT).items():
                yield stem, name, tensor
        for address, tensor in assemble_tensors(self.file(stem) for stem in self.stems if SHARD.fullmatch(stem)):
            group, _, name = address.partition("/")
            yield group, name, tensor

    def file(self, stem: str) -> Path:
        return self.path / f"{stem}{SUFFIX}"

    def state(self) -> JsonValue:
        """The JSON state."""
        with wrap_read_errors(self.path / STATE):
            text = (self.path / STATE).read_bytes()
        state: JsonValue = json.loads(text)
        return state


class NewestCheckpoint(NamedTuple):
    """The newest complete checkpoint, and for each newer one the file that is damaged and how."""

    checkpoint: Checkpoint | None
    rejected: tuple[str, ...]


def find_newest(folder: Path) -> NewestCheckpoint:
    """The newest complete checkpoint of a folder."""
    rejected: list[str] = []
    try:
        steps = _steps(folder)
    except OSError as error:
        return NewestCheckpoint(None, (f"{folder}: cannot be read: {os_error_message(error)}",))
    for step in reversed(steps):
        try:
            return NewestCheckpoint(open_checkpoint(folder / _name(step)), tuple(rejected))
        except WeightsError as error:
            rejected.append(str(error))
    return NewestCheckpoint(None, tuple(rejected))


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint, which may not exist."""
    return folder / _name(step)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder `step-...`, verified against its manifest; else WeightsError."""
    manifest = verify(path)
    if _name(manifest.step) != path.name.partition(DRAFT_SUFFIX)[0]:
        message = f"written for step {manifest.step}, which is not the step of its folder"
        raise WeightsError(message, code="weights.corrupt", where=path / MANIFEST)
    if STATE not in manifest.files:
        raise WeightsError(f"does not list {STATE}", code="weights.corrupt", where=path / MANIFEST)
    stems = tuple(name.removesuffix(SUFFIX) for name in manifest.files if name.endswith(SUFFIX))
    return Checkpoint(path, manifest.step, stems)


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: JsonValue,
    keep: int,
    best: int | None,
    storage: Storage = STORAGE,
) -> Path:
    """Write a checkpoint, then remove all earlier ones but the newest `keep` and that of the best step."""
    with write_errors(folder):
        draft = begin_draft(folder, step, storage)
        try:
            contents = {f"{stem}{SUFFIX}": safetensors_chunks(group) for stem, group in tensors.items()}
            digests = {name: storage.write_file(draft / name, content) for name, content in contents.items()}
            return commit_draft(draft, digests, state, keep, best, storage)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def begin_draft(folder: Path, step: int, storage: Storage) -> Path:
    """A new, empty draft folder for a checkpoint."""
    draft = folder / f"{_name(step)}{DRAFT_SUFFIX}{os.getpid()}"
    if not folder.exists():
        storage.make_folder(folder)
    storage.remove(draft)
    storage.make_folder(draft)
    return draft


def commit_draft(
    draft: Path, digests: Mapping[str, FileDigest], state: JsonValue, keep: int, best: int | None, storage: Storage
) -> Path:
    """Add state and manifest to a draft, rename it to its final name, and remove old checkpoints.

    Checkpoints of later steps, left by a run that was resumed from an earlier one, stay until that step is reached.
    """
    assert keep >= 1
    final = draft.with_name(draft.name.partition(DRAFT_SUFFIX)[0])
    step = int(final.name.removeprefix("step-"))
    written = storage.write_file(draft / STATE, [memoryview(json.dumps(state).encode())])
    manifest = build_manifest(step, {**digests, STATE: written})
    storage.write_file(draft / MANIFEST, [memoryview(manifest.to_json().encode())])
    storage.fsync(draft)
    storage.replace_folder(draft, final, backup=draft.with_name(f"{draft.name}-old"))
    past = [known for known in _steps(final.parent) if known <= step]
    for known in set(past[:-keep]) - {best}:
        _remove(final.with_name(_name(known)), storage)
    return final


def recover_drafts(folder: Path, storage: Storage = STORAGE) -> None:
    """Rename the complete drafts of killed processes to their final names, and remove incomplete ones.

    The caller must hold the lock of the run.
    """
    with write_errors(folder):
        for leftover in (
            folder / name for name in _names(folder) if re.match(rf"step-[0-9]+{re.escape(DRAFT_SUFFIX)}", name)
        ):
            final = folder / leftover.name.partition(DRAFT_SUFFIX)[0]
            try:
                whole = not final.exists() and open_checkpoint(leftover)
            except WeightsError:
                whole = False
            if whole:
                for file in leftover.iterdir():
                    storage.fsync(file)
                storage.fsync(leftover)
                storage.rename(leftover, final)
            else:
                storage.remove(leftover)


def _remove(path: Path, storage: Storage) -> None:
    nameless = path.with_name(f"{path.name}{DRAFT_SUFFIX}{os.getpid()}")
    storage.rename(path, nameless)
    storage.remove(nameless)


def _name(step: int) -> str:
    return f"step-{step:08}"


def _steps(folder: Path) -> list[int]:
    """The steps of all checkpoints with a final name, damaged or not, oldest first."""
    matches = (re.fullmatch(r"step-([0-9]{8,})", name) for name in _names(folder))
    return sorted(step for match in matches if match and _name(step := int(match[1])) == match[0])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:  # nothing was saved yet
        return []


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a VitralError that also names the checkpoint to resume from."""
    try:
        yield
    except OSError as error:
        last = find_newest(folder).checkpoint
        kept = f"the newest complete checkpoint is {last.path}" if last else "there is no complete checkpoint"
        raise write_error(error, folder, kept) from error


class CheckpointWriter(Protocol):
    """Saves the checkpoints of a run."""

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Start to save a copy of the tensors and the state."""
        ...

    def wait(self) -> None:
        """Return once everything is saved; raise the error if saving failed."""
        ...

    def close(self) -> None:
        """Wait, and release the resources."""
        ...


class NullCheckpointWriter:
    """For a process whose checkpoints are written by another."""

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        return

    def wait(self) -> None:
        return

    def close(self) -> None:
        return


class AsyncCheckpointWriter:
    """Writes checkpoints in a background thread, one at a time, so that at most one copy of the state is held.

    Training waits for the copy in memory, not for the disk. The next call of any method raises an error of writing.
    """

    def __init__(self, folder: Path, keep: int, storage: Storage = STORAGE) -> None:
        self.folder, self.keep, self.storage = folder, keep, storage
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Path] | None = None

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Copy the tensors and the state and start to write them, after the previous checkpoint is written."""
        self.wait()
        copies = {stem: {name: _copy(tensor) for name, tensor in group.items()} for stem, group in tensors.items()}
        self._writing = self._thread.submit(
            save_checkpoint, self.folder, step, copies, deepcopy(state), self.keep, best, storage=self.storage
        )

    def wait(self) -> None:
        """Return once everything is on disk. Call it before forking processes."""
        if self._writing is not None:
            error = self._writing.exception()
            self._writing = None  # not before, so that an interrupt of the wait forgets no error
            if error is not None:
                raise error

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _copy(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
