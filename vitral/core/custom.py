"""Classes of users, named `module:Class` or `path/file.py:Class`.

A class that is already imported is found by its name. Importing one runs code, so it happens only inside `trusted()`,
which `--trust` and `trust=True` enter.
"""

import hashlib
import importlib
import importlib.util
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from vitral.core.errors import ConfigError

T = TypeVar("T")
log = logging.getLogger("vitral")
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


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


def is_reference(name: object) -> bool:
    """Whether a name has the form of a class of a user."""
    return isinstance(name, str) and ":" in name and not name.startswith("hf:") and "://" not in name


def class_reference(cls: type) -> str:
    """The name by which a class can be imported again; `__main__:Class` for one of a notebook, which cannot.

    A module of an installed package goes by its name. A single file is found from another folder only by its path.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    by_file = file and "." not in cls.__module__ and Path(file).name != "__init__.py" and not _is_installed(file)
    return f"{os.path.abspath(file) if file and by_file else cls.__module__}:{cls.__qualname__}"


def _is_installed(file: str) -> bool:
    return any(Path(file).is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))


MODULE_PREFIX = "vitral_custom_"  # of modules imported from a file


def find_class(reference: str, base: type[T], where: str = "") -> type[T]:
    """The class of this name that is derived from `base`: one that is imported, or else, if trusted, imported now."""
    target, _, name = reference.rpartition(":")
    is_file = target.endswith(".py")
    absolute = f"{os.path.abspath(Path(target).expanduser())}:{name}" if is_file else reference
    known = {class_reference(cls): cls for cls in _subclasses(base)}  # the last, where a notebook defined it again
    if absolute in known:
        return known[absolute]
    if is_file and not Path(absolute.rpartition(":")[0]).exists():  # it was made elsewhere
        ending = f"{os.sep}{Path(target).name}:{name}"
        if moved := [other for other in known if other.endswith(ending)]:
            log.info(f"{reference} is not here; using {moved[-1]}, which is imported and has the same name")
            return known[moved[-1]]
    if target == "__main__":
        message = f"{name} was defined in a notebook or an interactive session, so it cannot be imported"
        raise ConfigError(message, code="config.not_importable", where=where, hint="define the class again first")
    if not is_trusted():
        raise ConfigError(
            f"{reference} is code of a user, which is imported only on request",
            code="config.untrusted",
            where=where,
            hint="add --trust, or trust=True in Python, if you trust it; or import the class yourself first",
        )
    module = _import_file(Path(absolute.rpartition(":")[0]), where) if is_file else _import_module(target, where)
    cls: object = module
    for part in name.split("."):
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


def _import_file(path: Path, where: str) -> object:
    """The module in a file, under a name of its own; the folder of the file does not enter the import path."""
    name = f"{MODULE_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
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
