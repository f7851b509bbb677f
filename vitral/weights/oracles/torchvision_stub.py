"""torchvision beside a CPU torch that its wheel was not built for: hollow for models, the real one for transforms."""

import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


class StubClass(type):
    """A class in which every public name is a class of the same sort."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, StubClass(name, (), {}))
        return getattr(cls, name)


def stub_torchvision() -> None:
    """Let timm and vit-pytorch be imported without torchvision, of which their model code calls nothing."""
    vision = StubClass("vision", (), {})
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


def import_beside_torchvision(library: str) -> Any:
    """A library that imports torchvision and calls nothing of it in its models, whatever torchvision is there."""
    if find_spec(library) is None:
        raise ImportError(f"{library} is not installed")
    try:
        import_module("torchvision")
    except Exception:  # it is missing, or was built for another torch, which fails in many ways
        _forget_torchvision()
        stub_torchvision()
    return import_module(library)


def import_torchvision(module: str) -> Any:
    """A module of the real torchvision: as it is installed, or from where `make bench` puts it beside a CPU torch.

    Where its compiled operators do not load, the names that it insists on are defined; its models and transforms need
    none of them.
    """
    aside = Path(sys.prefix) / "torchvision"
    if aside.is_dir() and str(aside) not in sys.path:
        sys.path.append(str(aside))
    if find_spec("torchvision") is None:
        raise ImportError("torchvision is not installed")
    try:
        return import_module(module)
    except Exception:  # it was built for another torch, which fails in many ways
        if _KEPT:
            raise
        _forget_torchvision()
    import torch  # only where it is needed: the hollow one is wanted before timm imports torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    _KEPT.append(library)  # a library that is collected takes its operators along
    return import_module(module)


def _forget_torchvision() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


_KEPT: list[object] = []
