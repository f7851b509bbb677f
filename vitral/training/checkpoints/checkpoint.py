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

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitral.core.documents import parse_json
from vitral.core.errors import WeightsError
from vitral.core.files import check_file, read_file
from vitral.core.manifest import (
    MANIFEST,
    Manifest,
    file_entries,
    read_manifest_as,
    verify_entries,
    write_manifest,
)
from vitral.core.storage import (
    STORAGE,
    FileDigest,
    Storage,
    os_error_message,
    refuse_link,
    wrap_read_errors,
    write_error,
)
from vitral.weights.tensors import read_safetensors, safetensors_chunks, tensor_names

STATE, SUFFIX = "state.json", ".safetensors"
SHARD = re.compile(r"shard-[0-9]+-of-([0-9]+)")
GROUPS = ("task", "optimizer", "average")  # of the state of a run
DRAFT_SUFFIX = ".tmp-"  # followed by the process id
HINT = "remove this checkpoint folder: the previous checkpoint is then used"
METADATA_KEY, OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"  # of `torch.distributed.checkpoint`

Tensors = Mapping[str, Mapping[str, Tensor]]  # by group and name


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
            file = stack.enter_context(_open_shard(path))
            offsets = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
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
def _open_shard(path: Path) -> Iterator[Any]:
    try:
        check_file(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except WeightsError:  # a ValueError, too
        raise
    except (SafetensorError, OSError, ValueError) as error:
        message = f"not a readable safetensors file: {error}"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=HINT) from None


class CheckpointManifest(Manifest):
    """The files of a checkpoint; others in the folder are ignored."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int


def verify(folder: Path) -> CheckpointManifest:
    """The manifest of a folder whose files all have the expected size and hash; else WeightsError."""
    manifest = read_manifest_as(CheckpointManifest, folder)
    verify_entries(folder, manifest.files, "")
    return manifest


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
        files = {stem: self.path / f"{stem}{SUFFIX}" for stem in self.stems}
        shards = [files.pop(stem) for stem in self.stems if SHARD.fullmatch(stem)]
        for stem, file in files.items():
            for name, tensor in read_safetensors(file, HINT).items():
                yield stem, name, tensor
        for address, tensor in assemble_tensors(shards):
            group, _, name = address.partition("/")
            yield group, name, tensor

    def names(self) -> set[tuple[str, str]]:
        """Group and name of every tensor, without reading them."""
        found: set[tuple[str, str]] = set()
        for stem in self.stems:
            for name in tensor_names(self.path / f"{stem}{SUFFIX}"):
                group, _, inner = name.partition("/") if SHARD.fullmatch(stem) else (stem, "", name)
                found.add((group, inner))
        return found

    def state(self) -> JsonValue:
        """The JSON state."""
        with wrap_read_errors(self.path / STATE):
            state: JsonValue = parse_json(read_file(self.path / STATE))
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
            return NewestCheckpoint(open_checkpoint(checkpoint_path(folder, step)), tuple(rejected))
        except WeightsError as error:
            rejected.append(str(error))
    return NewestCheckpoint(None, tuple(rejected))


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint, which may not exist."""
    return folder / f"step-{step:08}"


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder `step-...`, verified against its manifest; else WeightsError."""
    manifest = verify(path)
    if checkpoint_path(path.parent, manifest.step) != _final_path(path):
        message = f"written for step {manifest.step}, which is not the step of its folder"
        raise WeightsError(message, code="weights.corrupt", where=path / MANIFEST)
    if STATE not in manifest.names:
        raise WeightsError(f"does not list {STATE}", code="weights.corrupt", where=path / MANIFEST)
    stems = tuple(name.removesuffix(SUFFIX) for name in manifest.names if name.endswith(SUFFIX))
    checkpoint = Checkpoint(path, manifest.step, stems)
    if missing := _missing_tensors(checkpoint):
        message = f"lists {', '.join(missing)}"
        raise WeightsError(message, code="weights.corrupt", where=path / MANIFEST)
    return checkpoint


def _missing_tensors(checkpoint: Checkpoint) -> list[str]:
    """What a manifest does not list, but the state was saved with: the hashes cover only what it lists."""
    state, shards = checkpoint.state(), [match for stem in checkpoint.stems if (match := SHARD.fullmatch(stem))]
    expected = state.get("tensors") if isinstance(state, dict) else None
    missing = ["not all shards"] * any(int(match[1]) != len(shards) for match in shards)
    if isinstance(expected, dict):
        found = Counter(group for group, _ in checkpoint.names())
        missing += [
            f"{found[name]} of {count} tensors of {name}" for name, count in expected.items() if found[name] != count
        ]
    elif isinstance(state, dict) and "position" in state and not shards:  # an older format, with a file a group
        missing += [f"no {group}{SUFFIX}" for group in GROUPS if group not in checkpoint.stems]
    return missing


def save_checkpoint(
    folder: Path, step: int, tensors: Tensors, state: JsonValue, keep: int, best: int | None, storage: Storage = STORAGE
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
    draft = _draft_path(checkpoint_path(folder, step))
    refuse_link(folder)
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
    final = _final_path(draft)
    step = int(final.name.removeprefix("step-"))
    written = {**digests, STATE: storage.write_file(draft / STATE, [memoryview(json.dumps(state).encode())])}
    write_manifest(draft, CheckpointManifest(step=step, files=file_entries(written)), storage)
    storage.fsync(draft)
    storage.replace_folder(draft, final, backup=draft.with_name(f"{draft.name}-old"))
    past = [known for known in _steps(final.parent) if known <= step]
    for known in set(past[:-keep]) - {best}:
        old = checkpoint_path(final.parent, known)
        storage.rename(old, _draft_path(old))
        storage.remove(_draft_path(old))
    return final


def recover_drafts(folder: Path, storage: Storage = STORAGE) -> None:
    """Rename the complete drafts of killed processes to their final names, and remove incomplete ones.

    The caller must hold the lock of the run.
    """
    refuse_link(folder)
    with write_errors(folder):
        for leftover in (folder / name for name in _names(folder) if re.match(r"step-[0-9]+\.tmp-", name)):
            final = _final_path(leftover)
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


def _draft_path(final: Path) -> Path:
    return final.with_name(f"{final.name}{DRAFT_SUFFIX}{os.getpid()}")


def _final_path(draft: Path) -> Path:
    return draft.with_name(draft.name.partition(DRAFT_SUFFIX)[0])


def _steps(folder: Path) -> list[int]:
    """The steps of all checkpoints with a final name, damaged or not, oldest first."""
    matches = (re.fullmatch(r"step-([0-9]{8}|[1-9][0-9]{8,})", name) for name in _names(folder))
    return sorted(int(match[1]) for match in matches if match)


def latest_step(folder: Path) -> int:
    """The step of the latest checkpoint, damaged or not; 0 if there is none."""
    return max(_steps(folder), default=0)


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


class CheckpointWriter:
    """Saves nothing, since another process does; the base class of the writers."""

    _saving: Future[Any] | None = None

    def save(self, step: int, tensors: Tensors, state: JsonValue, best: int | None) -> None:
        """Copy the tensors and the state and start to write them, after the previous checkpoint is written."""

    @property
    def is_saved(self) -> bool:
        """Whether everything is on disk. Unlike `wait`, it is no collective."""
        return self._saving is None or (self._saving.done() and self._saving.exception() is None)

    def wait(self) -> None:
        """Return once everything is on disk; raise the error if saving failed. Call it before forking processes."""
        if self._saving is not None:
            error = self._saving.exception()
            self._saving = None  # not before, so that an interrupt of the wait forgets no error
            if error is not None:
                raise self._clean_up(error)

    def _clean_up(self, error: BaseException) -> BaseException:
        """Remove what a failed save left, and return the error to raise."""
        return error

    def close(self) -> None:
        """Wait, and release the resources."""
        self.wait()


class AsyncCheckpointWriter(CheckpointWriter):
    """Writes checkpoints in a background thread, one at a time, so that at most one copy of the state is held.

    Training waits for the copy in memory, not for the disk. The next call of any method raises an error of writing.
    """

    def __init__(self, folder: Path, keep: int, storage: Storage = STORAGE) -> None:
        self.folder, self.keep, self.storage = folder, keep, storage
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    @torch.no_grad()
    def save(self, step: int, tensors: Tensors, state: JsonValue, best: int | None) -> None:
        self.wait()
        copies = {
            stem: {name: torch.empty_like(tensor, device="cpu").copy_(tensor) for name, tensor in group.items()}
            for stem, group in tensors.items()
        }
        self._saving = self._thread.submit(
            save_checkpoint, self.folder, step, copies, deepcopy(state), self.keep, best, storage=self.storage
        )

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
