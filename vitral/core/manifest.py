"""Manifests: the size and SHA-256 of every file of a folder that vitral wrote, in `manifest.json` beside them.

A manifest covers all files but itself, its signature, and README.md, which may be edited. What vitral opens is checked
against it: small files before they are read, large ones in threads, while the model is built. Folders of earlier
formats have no manifest; they are opened, and called unverified.

    write_manifest      from the digests that `Storage.write_file` returned
    check_files         the check of a folder, started; its `wait` raises the error of the first damaged file
    file_policy         whether files are checked inside a context, and whose signature is required
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from vitral.core.config import Config
from vitral.core.documents import parse_json
from vitral.core.errors import ConfigError, VitralError, WeightsError
from vitral.core.files import check_file, open_file, read_file
from vitral.core.formats import upgrade_manifest
from vitral.core.signature import check_signature, sign_bytes
from vitral.core.storage import STORAGE, FileDigest, Storage, wrap_read_errors, wrap_write_errors

MANIFEST, SIGNATURE, CARD = "manifest.json", "manifest.sig", "README.md"
FORMAT: Literal[2] = 2
SMALL = 2**20  # bytes of a file that is hashed at once
CHUNK = 2**26  # bytes that are hashed without the interpreter's lock
MOST_THREADS = 4
Kind = Literal["bundle", "checkpoint", "export", "pack", "run", "sweep"]
SIGNED = ("bundle", "export", "pack")  # the kinds that a signature may be required of
# Whether the files of a model were checked: `unverified` for those without a manifest, `skipped` on request.
FileStatus = Literal["verified", "signed", "unverified", "skipped"]


class FileEntry(Config):
    """The size and hash of a file."""

    name: str  # below the folder, with / between its parts
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(Config):
    """The files of a folder, sorted by name."""

    format: Literal[2] = FORMAT  # core/formats.py reads format 1, which only checkpoints had
    kind: Kind
    files: tuple[FileEntry, ...]

    @model_validator(mode="after")
    def names_stay_below(self) -> Self:
        for name in self.names:
            parts = PurePosixPath(name).parts
            if "/".join(parts) != name or not parts or {"/", ".."} & set(parts):
                raise ConfigError(f"{name!r} is no file below this folder", code="config.bad_value", where="files")
        return self

    @property
    def names(self) -> list[str]:
        """The names of the files."""
        return [entry.name for entry in self.files]


M = TypeVar("M", bound=Manifest)


def file_entries(digests: Mapping[str, FileDigest]) -> tuple[FileEntry, ...]:
    """The entries of files by name."""
    return tuple(FileEntry(name=name, bytes=size, sha256=sha256) for name, (size, sha256) in sorted(digests.items()))


def describe_files(folder: Path) -> tuple[FileEntry, ...]:
    """The entries of all files in a folder, read from the disk."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    return file_entries({path.name: FileDigest(path.stat().st_size, hash_files([path])) for path in paths})


def write_manifest(folder: Path, manifest: Manifest, storage: Storage = STORAGE) -> None:
    """Write the manifest of a folder, or replace it. The caller fsyncs the folder of a new one."""
    text = manifest.to_json().encode()
    if (folder / MANIFEST).exists():
        storage.replace_file(folder / MANIFEST, text)
    else:
        storage.write_file(folder / MANIFEST, [memoryview(text)])


def add_to_manifest(folder: Path, digests: Mapping[str, FileDigest]) -> None:
    """Add files to the manifest of a folder."""
    manifest = read_manifest(folder)
    kept = (entry for entry in manifest.files if entry.name not in digests)
    files = tuple(sorted((*kept, *file_entries(digests)), key=lambda entry: entry.name))
    write_manifest(folder, manifest.model_copy(update={"files": files}))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; WeightsError unless it is exactly what vitral writes."""
    return read_manifest_as(Manifest, folder)


def read_manifest_as(form: type[M], folder: Path) -> M:
    """The same for a manifest with more fields."""
    path = folder / MANIFEST
    with wrap_read_errors(path):
        text = read_file(path)
    return parse_manifest(text, form, path)


def parse_manifest(text: bytes, form: type[M], path: Path) -> M:
    """The manifest in a text; WeightsError unless it is exactly what vitral writes."""
    try:
        upgraded = upgrade_manifest(text)
        manifest = form.from_json(upgraded)
        # No hash covers the manifest itself, so its text must be the one that vitral writes.
        own = manifest.to_json() if upgraded is text else json.dumps(parse_json(text), indent=2, ensure_ascii=False)
        if own.encode() != text:
            raise ConfigError("not the text that vitral writes", code="config.bad_value")
        return manifest
    except (ConfigError, ValueError) as error:
        message = f"damaged: not a valid manifest: {error}"
        raise WeightsError(message, code="weights.corrupt", where=path) from None


def is_artifact(folder: Path, kind: Kind) -> bool:
    """Whether a folder has the manifest of this kind."""
    try:
        return read_manifest(folder).kind == kind
    except WeightsError:
        return False


class FilePolicy(NamedTuple):
    """Whether files are checked, and the file of the public key whose signature is required, if any."""

    verify: bool = True
    public_key: str = ""


CHECKED = FilePolicy()
_policy: ContextVar[FilePolicy] = ContextVar("file_policy", default=CHECKED)


@contextmanager
def file_policy(verify_files: bool = True, require_signature: str | Path = "") -> Iterator[None]:
    """Inside this context, files are checked as asked for; the defaults change nothing."""
    before = _policy.get()
    given = FilePolicy(verify_files and before.verify, str(require_signature) or before.public_key)
    token = _policy.set(_checked_policy(given))
    try:
        yield
    finally:
        _policy.reset(token)


@contextmanager
def own_files() -> Iterator[None]:
    """Inside this context, files that this process has just written are opened: nobody can have signed them."""
    token = _policy.set(CHECKED)
    try:
        yield
    finally:
        _policy.reset(token)


def current_policy() -> FilePolicy:
    """The policy in this context."""
    return _policy.get()


def refuse_unsigned(path: Path) -> None:
    """Reject files that cannot be signed, if a signature is required."""
    if _policy.get().public_key:
        message = "has no manifest of a bundle, an export or a pack, so it cannot be signed"
        hint = "convert it to a bundle, and sign that: vitral convert FROM TO; vitral sign TO --key KEY"
        raise WeightsError(message, code="weights.unsigned", where=path, hint=hint)


def set_file_policy(verify_files: bool, require_signature: str) -> None:
    """The policy for the rest of the process, as the command line sets it."""
    _policy.set(_checked_policy(FilePolicy(verify_files, require_signature)))


def _checked_policy(policy: FilePolicy) -> FilePolicy:
    if policy.public_key and not policy.verify:
        message, hint = "a signature says nothing about files that are not verified", "leave out --no-verify"
        raise ConfigError(message, code="config.conflict", where="--require-signature", hint=hint)
    return policy


class FileCheck:
    """The check of a folder's files: the small ones are checked, the large ones are being hashed."""

    def __init__(self, status: FileStatus, folder: Path) -> None:
        self.status: FileStatus = status
        self.folder = folder
        self.names: frozenset[str] = frozenset()  # that the manifest lists
        self._hashing: list[tuple[FileEntry, Future[str], str]] = []  # and what to do if the hash is wrong
        self._process = os.getpid()  # whose threads compute the hashes

    def start(self, entries: Iterable[FileEntry], hint: str) -> Self:
        """Check sizes and the small files now, and begin to hash the large ones."""
        large = []
        for entry in entries:
            path = self.folder / entry.name
            _check_size(path, entry, hint)
            if entry.bytes > SMALL:
                large.append(entry)
            else:
                _check_hash(path, entry, partial(hash_files, [path]), hint)
        found = _hash_in_threads([self.folder / entry.name for entry in large])
        self._hashing = [(entry, digest, hint) for entry, digest in zip(large, found, strict=True)]
        return self

    def require_listed(self, needed: Iterable[str], hint: str) -> None:
        """Reject a manifest that does not list a file."""
        if self.status in ("verified", "signed") and (unlisted := sorted(set(needed) - self.names)):
            message = f"does not list {unlisted[0]}"
            raise WeightsError(message, code="weights.corrupt", where=self.folder / MANIFEST, hint=hint)

    def require_manifest(self, format: object, since: int, hint: str) -> None:
        """Reject a folder of a format that has a manifest, if there is none."""
        if self.status == "unverified" and isinstance(format, int) and format >= since:
            message = f"is missing, but a folder of format {format} has one; its files cannot be verified"
            hint = f"{hint}; --no-verify, or verify_files=False in Python, opens it as it is"
            raise WeightsError(message, code="weights.no_manifest", where=self.folder / MANIFEST, hint=hint)

    def wait(self, but: Collection[str] = ()) -> None:
        """Return once every file, `but` these, is checked; WeightsError names the first that is damaged."""
        for entry, digest, hint in self._hashing:  # they stay: who asks again gets the same answer
            if entry.name in but:
                continue
            path = self.folder / entry.name
            # The child of a fork does not have the threads.
            hash = digest.result if os.getpid() == self._process else partial(hash_files, [path])
            _check_hash(path, entry, hash, hint)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """After an error in the block, a damaged file is the error: it is the cause."""
        try:
            yield
        except VitralError:
            self.wait()
            raise

    def messages(self) -> list[str]:
        """A line unless the files are verified."""
        if self.status == "unverified":
            return [f"unverified: {self.folder} is of an earlier format without hashes of its files"]
        return [f"not verified: the files of {self.folder} were not checked"] if self.status == "skipped" else []


def check_files(folder: Path, kind: Kind, needed: Collection[str], optional: str, hint: str) -> FileCheck:
    """Start to check the files of a folder by its manifest, as the policy says.

    The manifest must list the `needed` files. Those below the folder `optional` may be missing. The hint says what to
    do if a file is damaged.
    """
    policy = _policy.get()
    if not policy.verify:
        return FileCheck("skipped", folder)
    path = folder / MANIFEST
    if not os.path.lexists(path):
        refuse_unsigned(folder)
        return FileCheck("unverified", folder)
    with wrap_read_errors(path):
        text = read_file(path)
    if policy.public_key:
        check_signature(text, folder / SIGNATURE, Path(policy.public_key).expanduser())
    manifest = parse_manifest(text, Manifest, path)
    if manifest.kind != kind:
        message = f"is that of a {manifest.kind}, not of a {kind}"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=hint)
    check = FileCheck("signed" if policy.public_key else "verified", folder)
    check.names = frozenset(manifest.names)
    check.require_listed(needed, hint)
    entries = [
        entry
        for entry in manifest.files
        if not (optional and entry.name.startswith(f"{optional}/") and not (folder / entry.name).exists())
    ]
    return check.start(entries, hint)


def sign(folder: str | Path, key: str | Path) -> Path:
    """Sign a bundle, an export or a pack: `vitral.sign("runs/photos/best", "me.key")`. Its files are verified first.

    The result is the file of the signature. What is rewritten afterwards has to be signed again.
    """
    home = Path(folder).expanduser()
    if not os.path.lexists(home / MANIFEST):
        message, hint = "has no manifest to sign", "give a bundle such as RUN/best, an export or a pack"
        raise WeightsError(message, code="weights.no_manifest", where=home, hint=hint)
    manifest = read_manifest(home)
    if manifest.kind not in SIGNED:
        message = f"is the manifest of a {manifest.kind}, which is not signed"
        hint = "give a bundle such as RUN/best, an export or a pack"
        raise WeightsError(message, code="weights.no_manifest", where=home / MANIFEST, hint=hint)
    verify_entries(home, manifest.files, "sign files that are intact")
    with wrap_read_errors(home / MANIFEST):
        signature = sign_bytes(read_file(home / MANIFEST), Path(key).expanduser())
    with wrap_write_errors(home / SIGNATURE):
        STORAGE.replace_file(home / SIGNATURE, signature)
    return home / SIGNATURE


def verify_entries(folder: Path, entries: Iterable[FileEntry], hint: str) -> None:
    """Check the files of these entries, whatever the policy; WeightsError names the first that is damaged."""
    FileCheck("verified", folder).start(entries, hint).wait()


def _check_size(path: Path, entry: FileEntry, hint: str) -> None:
    with wrap_read_errors(path):
        found = check_file(path)
    if found != entry.bytes:
        message = f"truncated or extended: {found:,} bytes, expected {entry.bytes:,}"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=hint)


def _check_hash(path: Path, entry: FileEntry, hash: Callable[[], str], hint: str) -> None:
    with wrap_read_errors(path):
        digest = hash()
    if digest != entry.sha256:
        message = "damaged: its SHA-256 is not the one in the manifest"
        raise WeightsError(message, code="weights.corrupt", where=path, hint=hint)


_early: dict[Path, Future[str]] = {}


def _hash_in_threads(paths: Collection[Path]) -> list[Future[str]]:
    """The hashes of files, each as soon as it is computed; those that were begun early are taken over."""
    late = [path for path in paths if path not in _early]
    pool = ThreadPoolExecutor(min(len(late), MOST_THREADS), thread_name_prefix="verify") if late else None
    begun = {path: pool.submit(hash_files, [path]) for path in late} if pool else {}
    if pool:
        pool.shutdown(wait=False)
    return [begun.get(path) or _early.pop(path) for path in paths]


@contextmanager
def hashed_early(model: Path) -> Iterator[None]:
    """Hash the large files of a bundle, or of a run's bundle, while the block imports torch to open it."""
    found = (each for each in (model, model / "best", model / "last") if (each / MANIFEST).is_file())
    home = next((each for each in found if not is_artifact(each, "run")), None)
    large: list[Path] = []
    if home and _policy.get().verify:
        with suppress(WeightsError):  # which opening it raises
            large = [home / entry.name for entry in read_manifest(home).files if entry.bytes > SMALL]
    _early.update(zip(large, _hash_in_threads(large), strict=True))
    try:
        yield
    finally:
        for path in large:
            _early.pop(path, None)  # the file may be another one later


def hash_files(paths: Iterable[Path]) -> str:
    """The SHA-256 of files, one after the other.

    They are mapped and hashed in large chunks: a thread that reads in small ones waits for the interpreter's lock each
    time, for milliseconds while another thread runs Python.
    """
    digest = hashlib.sha256()
    for path in paths:
        with open_file(path) as file:
            if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
                for start in range(0, len(view), CHUNK):
                    with view[start : start + CHUNK] as chunk:
                        digest.update(chunk)
    return digest.hexdigest()
