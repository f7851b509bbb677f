"""torchvision beside the CPU torch, which its wheel would break: hollow for models, the real one for transforms."""

import sys
from functools import partial
from importlib import import_module
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


def import_torchvision(module: str) -> Any:
    """A module of the real torchvision, from where `make bench` puts it, beside a CPU torch it was not built for.

    Its compiled operators do not load, so the names that it insists on are defined; its transforms need none of them.
    """
    if _KEPT:
        return import_module(module)
    import torch  # only where it is needed: the hollow one is wanted before timm imports torch

    sys.path.append(str(Path(sys.prefix) / "torchvision"))
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    _KEPT.append(library)  # a library that is collected takes its operators along
    return import_module(module)


_KEPT: list[object] = []
