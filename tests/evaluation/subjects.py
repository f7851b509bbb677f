"""A small model and a small set of pictures in memory, to be judged in no time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tests.models.variants import small
from vitral.core.config import Size
from vitral.data.datasets.arrays import LabeledImages, open_arrays
from vitral.data.samples import Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.feature_cache import FeatureCache
from vitral.evaluation.subject import EvaluationContext, Progress, SubjectModel, no_progress
from vitral.models import LinearHead, Mlp, NoHead
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel

CLASSES = ("ant", "bee", "cat")
SIDE = 16
EACH = {"train": 12, "test": 6}  # pictures of each class
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Stripes:
    """Pictures of each class have stripes of their own, under noise."""

    classes: int = len(CLASSES)

    def load(self, part: str) -> LabeledImages:
        rng = np.random.default_rng([len(part), self.classes])
        labels = np.arange(self.classes).repeat(EACH[part])
        rows = np.arange(SIDE)[None, :, None, None] // (labels[:, None, None, None] + 1) % 2 * 120
        noise = rng.integers(0, 130, (len(labels), SIDE, SIDE, 3))
        return LabeledImages((rows + noise).astype(np.uint8), labels.astype(np.uint8))


def stripes(classes: tuple[str, ...] = CLASSES) -> Samples:
    return open_arrays("stripes", classes, Stripes(len(classes)))


def without(samples: Samples, split: str) -> Samples:
    return replace(samples, items=tuple(item for item in samples.items if item.split != split))


def striped_model(classes: tuple[str, ...] = CLASSES, seed: int = 0, **fields: Any) -> LoadedModel:
    """A model with random weights, its head too, that names the classes; without classes it has no head."""
    head = LinearHead(num_classes=len(classes)) if classes else NoHead()
    given = {"image_size": Size(SIDE, SIDE), "width": 16, "depth": 1, "mlp": Mlp(ratio=1), "head": head}
    config = small(**(given | fields))
    torch.manual_seed(seed)
    model = config.build().eval()
    if classes:
        torch.nn.init.normal_(model.get_parameter("head.linear.weight"))
    needs = Preprocessing(image_size=Size(SIDE, SIDE))
    task: Literal["classify", "masked_patches"] = "classify" if classes else "masked_patches"
    return LoadedModel(model, Bundle(model=config, task=task, preprocessing=needs, classes=classes))


def tools(batch: int = 7, cache: FeatureCache | None = None, progress: Progress = no_progress) -> EvaluationContext:
    return EvaluationContext(CPU, batch, workers=0, seed=0, cache=cache or FeatureCache(), progress=progress)


def subject(
    loaded: LoadedModel | None = None, samples: Samples | None = None, means: EvaluationContext | None = None
) -> SubjectModel:
    model, bundle = loaded or striped_model()
    return SubjectModel(model, bundle, samples or stripes(), "test", means or tools())


class Counted:
    """Something to make, and how often it was made."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make, self.times = make, 0

    def __call__(self) -> Tensor:
        self.times += 1
        return self.make()


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
