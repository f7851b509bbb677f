"""The nearest model that a library can hold, where a difference is no reason to refuse a conversion.

A part that a model lacks may be there with zeros, which changes no output: a bias, or the position of a class token.
And libraries fix the small numbers that guard a division: the eps of norms, and of kernels that are standardized.
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from vitral.core.config import override
from vitral.models.vit import Vit

ZEROS = ("stem.bias", "mixer.qkv_bias", "mixer.project_bias", "mlp.bias", "position.cls")
GUARDS = ("eps", "stem.group_eps", "stem.standardization")
LARGEST_EPS = 1e-5  # of published Vision Transformers; a larger one changes what a norm computes


def setting_value(model: Vit, path: str) -> Any:
    """The value of a setting such as `mixer.heads`; None where the model does not have it."""
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def nearest_value(field: str, value: Any, allowed: Sequence[Any]) -> Any:
    """The allowed value that a setting may have instead of its own; its own where there is none."""
    if value in allowed:
        return value
    if field in ZEROS:
        return value or True in allowed
    if field == "stem.standardization":
        return allowed[0]
    if field in GUARDS and value <= LARGEST_EPS:
        guards = [each for each in allowed if each <= LARGEST_EPS]
        return min(guards, key=lambda each: abs(log(each / value)), default=value)
    return value


def nearest_model(model: Vit, supported: Mapping[str, Sequence[Any]]) -> Vit:
    """The model with zeros and guards where the settings that a format supports call for them."""
    changes: dict[str, Any] = {}
    for field in (*ZEROS, *GUARDS):
        value = setting_value(model, field)
        if value is None or field not in supported or (field == "position.cls" and not model.tokens.cls):
            continue
        changes[field] = nearest_value(field, value, supported[field])
    return override(model, changes) if any(setting_value(model, each) != changes[each] for each in changes) else model


def zero_padded(own: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model for its nearest one: zeros for biases that it lacks, and for the first row of a table."""
    found = {name: own.get(name, torch.zeros(like.shape)) for name, like in wanted.items()}
    for name, like in wanted.items():
        if found[name].shape != like.shape:  # (1, N, D), and (1, 1 + N, D) with a row for the class token
            rows = like.shape[1] - found[name].shape[1]
            found[name] = torch.cat([found[name].new_zeros(1, rows, like.shape[2]), found[name]], dim=1)
    return found
