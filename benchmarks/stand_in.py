"""A hollow torchvision, for peers that import it and whose models never call it: its wheel breaks the CPU torch."""

import sys
from functools import partial
from types import ModuleType


class Hollow(type):
    """A class in which every public name is a class of the same sort."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, Hollow(name, (), {}))
        return getattr(cls, name)


def stand_in_for_torchvision() -> None:
    """Let timm and vit-pytorch be imported without torchvision, of which their model code calls nothing."""
    vision = Hollow("vision", (), {})
    parts = ("", ".datasets", ".ops", ".ops.misc", ".models", ".models.feature_extraction", ".transforms",
             ".transforms.functional")  # fmt: skip
    for part in parts:
        module = ModuleType("torchvision" + part)
        module.__path__ = []  # a package, so that its parts can be imported
        vars(module)["__getattr__"] = partial(getattr, vision)
        sys.modules[module.__name__] = module
    for part in parts[1:]:
        parent, name = f"torchvision{part}".rsplit(".", 1)
        setattr(sys.modules[parent], name, sys.modules[f"torchvision{part}"])
