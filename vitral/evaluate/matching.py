"""Whether a model and a set of images are of the same classes and of the same preprocessing."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from vitral.data.samples import Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.errors import ConfigError, DataError
from vitral.weights.bundle import Bundle

MOST_NAMES = 8  # of a list, in a message
OTHERWISE = "judge its features, which need no classes: --with knn,linear"


def labels_by_name(samples: Samples, bundle: Bundle) -> Tensor:
    """For each class of the data (K,), the label that the model has for the class of that name.

    DataError, with both lists, if the model does not have one of them.
    """
    if samples.classes == bundle.classes:
        return torch.arange(len(samples.classes))
    missing = [name for name in samples.classes if name not in set(bundle.classes)]
    if missing:
        raise DataError(
            f"the model does not know {len(missing):,} of the {len(samples.classes):,} classes of the data: "
            f"{shortened(missing)}. The data has {shortened(samples.classes)}. The model has "
            f"{shortened(bundle.classes)}",
            code="data.unknown_class",
            where=samples.where,
            remedy=f"give data of the model's classes, or {OTHERWISE}",
        )
    counts = Counter(bundle.classes)
    if twice := [name for name in samples.classes if counts[name] > 1]:
        what = f"the model has more than one class of the name {shortened(twice)}: labels cannot be matched by name"
        remedy = "name the classes of the data in the model's order, all of them"
        raise DataError(what, code="data.ambiguous_class", where=samples.where, remedy=remedy)
    numbers = {name: label for label, name in enumerate(bundle.classes)}
    return torch.tensor([numbers[name] for name in samples.classes])  # (K,)


def refuse_headless(bundle: Bundle, judge: str) -> None:
    """Refuse a model that gives no answers."""
    if bundle.task != "classify":
        what = f"{judge} needs a head that names classes, and the model, whose task is {bundle.task!r}, has none"
        raise ConfigError(what, code="config.unsupported", where=f"--with {judge}", remedy=OTHERWISE)


def refuse_other_preprocessing(needed: Preprocessing, given: Preprocessing) -> None:
    """Refuse what the weights do not expect, each field that differs with both values."""
    ours, theirs = needed.model_dump(mode="json"), given.model_dump(mode="json")
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        told = "; ".join(
            f"{name} is {_brief(theirs[name])}, the model needs {_brief(ours[name])}" for name in differing
        )
        remedy = "leave it out, as the bundle has its own; other sizes of images are judged by --with resolution"
        raise ConfigError(told, code="config.conflict", where="preprocessing", remedy=remedy)


def shortened(names: Sequence[str]) -> str:
    """`ant, bee, cat and 7 more`."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES]) or 'none'}{more}"


def _brief(value: object) -> str:
    """Plain data as one reads it: `224x224`, `kind=centre_crop, fraction=0.875`."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_brief(inner)}" for name, inner in value.items())
    if isinstance(value, list) and value and all(isinstance(side, int) for side in value):
        return "x".join(map(str, value))
    return str(value)
