"""Vitral: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), whole.

The names below are imported when they are first used, so that `import vitral` does not wait for torch.
"""

from vitral.core.import_path import remove_working_directory

remove_working_directory()  # before any import that a file in it could replace

# isort: split
from importlib import import_module  # noqa: E402

from vitral.core.imports import pause_gc  # noqa: E402

__version__ = "0.1.0"

# The stub beside this file, which type checkers and editors read, is the list of public names and their modules.
with open(f"{__file__}i", encoding="utf-8") as _stub:  # lines such as `    from vitral.models.vit import Vit as Vit`
    _FOUND = sorted((line.split()[3], line.split()[1]) for line in _stub if line.startswith("    from "))
_HOMES = dict(_FOUND)

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitral' has no attribute {name!r}")
    with pause_gc():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
