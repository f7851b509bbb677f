"""Classes of users, named `module:Class` or `path/file.py:Class`, and copies of their files.

A class that is already imported is found by its name. Importing one runs code, so it happens only inside `trusted()`,
which `--trust` and `trust=True` enter. What is saved with such a class carries a copy of its file, which is imported
instead of the file itself: that may have changed, or be on another machine.
"""

import hashlib
import importlib
import importlib.util
import json
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import NamedTuple, TypeVar

from vitral.core.documents import parse_json
from vitral.core.errors import ConfigError
from vitral.core.files import read_file

T = TypeVar("T")
log = logging.getLogger("vitral")
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)
_copies: ContextVar[Mapping[str, "SourceCopy"]] = ContextVar("copies", default=MappingProxyType({}))
INDEX = "sources.json"  # in a folder of copies


@contextmanager
def trusted(trust: bool = True) -> Iterator[None]:
    """Inside this context, classes of users may be imported; `trust=False` changes nothing."""
    token = _trusted.set(trust or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted() -> bool:
    """Whether classes of users may be imported here."""
    return _trusted.get()


def trust_from_now_on(trust: bool) -> None:
    """Trust or distrust for the rest of the process, as the command line does."""
    _trusted.set(trust)


class SourceCopy(NamedTuple):
    """The copy of a Python file, and the SHA-256 that it was written with."""

    path: Path
    sha256: str

    @property
    def module(self) -> str:
        """The name of the module that is imported from it."""
        return f"{COPY_PREFIX}{self.sha256}"

    @property
    def is_imported(self) -> bool:
        """Whether it, or another copy with the same content, is imported."""
        return self.module in sys.modules


@contextmanager
def use_copies(folder: Path) -> Iterator[None]:
    """Inside this context, classes of the files that were copied into a folder are imported from there."""
    token = _copies.set(_read_copies(folder))
    try:
        yield
    finally:
        _copies.reset(token)


def _read_copies(folder: Path) -> dict[str, SourceCopy]:
    try:
        files = parse_json(read_file(folder / INDEX))["files"]
        copies = {each["path"]: SourceCopy(folder / each["copy"], each["sha256"]) for each in files}
        if all(copy.path.parent == folder for copy in copies.values()):
            return copies
    except FileNotFoundError:  # no copies: none were needed, or an older version wrote it
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    hint = "copy the folder again"
    raise ConfigError("not a list of copied files", code="config.not_importable", where=folder / INDEX, hint=hint)


def copy_sources(data: object) -> dict[str, bytes]:
    """Files for `use_copies`, by name: those of the classes that plain data names by file, and their index."""
    files: dict[str, bytes] = {}
    index = []
    for path in sorted({each.rpartition(":")[0] for each in references(data) if ".py:" in each}):
        try:
            content = read_file(Path(path))
        except OSError as error:
            log.info(f"{path} is not copied, so the class in it is found only at this path: {error.strerror}")
            continue
        digest = hashlib.sha256(content).hexdigest()
        name = Path(path).name if Path(path).name not in files else f"{Path(path).stem}_{digest[:8]}.py"
        files[name] = content
        index.append({"path": path, "copy": name, "sha256": digest})
    return files | ({INDEX: json.dumps({"files": index}, indent=2).encode()} if index else {})


def is_reference(name: object) -> bool:
    """Whether a name has the form of a class of a user."""
    return isinstance(name, str) and ":" in name and not name.startswith("hf:") and "://" not in name


def references(data: object) -> Iterator[str]:
    """The classes of users that plain data names as kinds, as in the JSON of a config."""
    if isinstance(data, Mapping):
        if is_reference(data.get("kind")):
            yield str(data["kind"])
        data = list(data.values())
    for item in data if isinstance(data, list | tuple) else ():
        yield from references(item)


def class_reference(cls: type) -> str:
    """The name by which a class can be imported again; `__main__:Class` for one of a notebook, which cannot.

    A class of an installed package is named by its module. A single file is found from another folder only by its path.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    by_file = file and "." not in cls.__module__ and Path(file).name != "__init__.py" and not _is_installed(file)
    return f"{os.path.abspath(file) if file and by_file else cls.__module__}:{cls.__qualname__}"


def _is_installed(file: str) -> bool:
    return any(Path(file).is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))


MODULE_PREFIX = "vitral_custom_"  # of modules imported from a file
COPY_PREFIX = "vitral_copy_"  # of modules imported from a copy; the rest is the hash of its content


def find_class(reference: str, base: type[T], where: str = "") -> type[T]:
    """The class of this name that is derived from `base`: one that is imported, or else, if trusted, imported now.

    A copy of the file that was saved with the reference is preferred to a file that has changed since.
    """
    target, _, name = reference.rpartition(":")
    is_file = target.endswith(".py")
    file = Path(os.path.abspath(Path(target).expanduser()))
    absolute = f"{file}:{name}" if is_file else reference
    known = {class_reference(cls): cls for cls in _subclasses(base)}  # the last, where a notebook defined it again
    copy = _copies.get().get(str(file))
    if copy and not (absolute in known and _hash(file) == copy.sha256) and (is_trusted() or copy.is_imported):
        return _class_in(_import_copy(copy, file, where), reference, base, where)
    if absolute in known:
        if copy and _hash(file) != copy.sha256:
            log.info(
                f"{reference} is imported, and its file has changed since it was saved; trust takes the saved copy"
            )
        return known[absolute]
    if is_file and not file.exists():  # it was made elsewhere
        ending = f"{os.sep}{file.name}:{name}"
        own = [other for other, cls in known.items() if not cls.__module__.startswith(COPY_PREFIX)]
        if moved := [other for other in own if other.endswith(ending)]:
            log.info(f"{reference} is not here; using {moved[-1]}, which is imported and has the same name")
            return known[moved[-1]]
    if target == "__main__":
        message = f"{name} was defined in a notebook or an interactive session, so it cannot be imported"
        raise ConfigError(message, code="config.not_importable", where=where, hint="define the class again first")
    if not is_trusted():
        raise ConfigError(
            f"{reference} is not part of Vitral, and importing it runs its code",
            code="config.untrusted",
            where=where,
            hint="add --trust, or trust=True in Python, if you trust it; or import the class yourself first",
        )
    module = _import_file(file, where) if is_file else _import_module(target, where)
    return _class_in(module, reference, base, where)


def _class_in(module: object, reference: str, base: type[T], where: str) -> type[T]:
    cls: object = module
    for part in reference.rpartition(":")[2].split("."):
        cls = getattr(cls, part, None)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        found_text = "no such class" if cls is None else f"not a class derived from {base.__name__}"
        raise ConfigError(
            f"{reference}: {found_text}", code="config.not_importable", where=where, hint="check the name"
        )
    return cls


def _subclasses(base: type[T]) -> Iterator[type[T]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def _import_module(name: str, where: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f"install it, or name its file: path/to/{name.rpartition('.')[2]}.py:Class"
        raise ConfigError(
            f"module {name} cannot be imported: {error}", code="config.not_importable", where=where, hint=hint
        ) from error


def _import_copy(copy: SourceCopy, original: Path, where: str) -> object:
    """The module in a copied file. Copies with the same content are one module."""
    if not copy.is_imported:
        if copy.path.exists() and _hash(copy.path) != copy.sha256:
            message, hint = f"{copy.path} was changed after it was copied", "copy the folder again"
            raise ConfigError(message, code="config.not_importable", where=where, hint=hint)
        if original.exists() and _hash(original) != copy.sha256:
            log.info(f"{original} has changed; using the copy that was saved with the model, {copy.path}")
    return _import_file(copy.path, where, copy.module)


def _hash(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest() if path.is_file() else ""


class _SourceLoader(SourceFileLoader):
    """Runs the text of a file, never the bytecode beside it, which no hash covers, and leaves none there."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(path: Path, where: str, name: str = "") -> object:
    """The module in a file, under a name of its own; the folder of the file does not enter the import path."""
    name = name or f"{MODULE_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    if spec is None or spec.loader is None or not path.is_file():
        message, hint = f"no such Python file: {path}", "put it there, or import the class in Python before loading"
        raise ConfigError(message, code="config.not_importable", where=where, hint=hint)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pydantic look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
