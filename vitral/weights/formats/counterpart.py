"""The nearest model that a library can hold, where a difference is no reason to refuse a conversion.

A part that a model lacks may be there with zeros, which changes no output: a bias, or the position of a class token.
A register and its position may be one tensor, their sum. And libraries fix the small numbers that guard a division:
the eps of norms, and of kernels that are standardized.
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from vitral.core.config import override
from vitral.models.position import Learned1d
from vitral.models.vit import Vit
from vitral.weights.formats.rules import TABLE, TOKENS

ZEROS = ("stem.bias", "mixer.qkv_bias", "mixer.project_bias", "mlp.bias", "position.cls")
ROWS = "position.register_rows"  # a register always has the same position: it may be part of the token
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
    if field == ROWS:
        return (not value) if (not value) in allowed else value
    if field == "stem.standardization":
        return allowed[0]
    if field in GUARDS and value <= LARGEST_EPS:
        guards = [each for each in allowed if each <= LARGEST_EPS]
        return min(guards, key=lambda each: abs(log(each / value)), default=value)
    return value


def nearest_model(model: Vit, supported: Mapping[str, Sequence[Any]]) -> Vit:
    """The model with zeros and guards where the settings that a format supports call for them."""
    changes: dict[str, Any] = {}
    needless = {"position.cls": not model.tokens.cls, ROWS: not model.tokens.registers}
    for field in (*ZEROS, ROWS, *GUARDS):
        value = setting_value(model, field)
        if value is None or field not in supported or needless.get(field):
            continue
        changes[field] = nearest_value(field, value, supported[field])
    return override(model, changes) if any(setting_value(model, each) != changes[each] for each in changes) else model


def fitted_tensors(own: Mapping[str, Tensor], old: Vit, new: Vit) -> dict[str, Tensor]:
    """The tensors of a model for its nearest one: zeros for biases and rows that it lacks."""
    found = {name: own.get(name, torch.zeros(like.shape)) for name, like in new.build_empty().state_dict().items()}
    if isinstance(old.position, Learned1d) and isinstance(new.position, Learned1d):
        found |= fitted_rows(found[TOKENS], found[TABLE], old, new) if TOKENS in found else {}
    return found


def fitted_rows(tokens: Tensor, table: Tensor, old: Vit, new: Vit) -> dict[str, Tensor]:
    """The tokens (prefix, D) and the table (copies, rows, D), with rows of zeros or without rows that tokens take."""
    before, after, layout = old.position, new.position, old.layout(old.image_size)
    assert isinstance(before, Learned1d)
    assert isinstance(after, Learned1d)
    counts = [before.cls * layout.cls, before.register_rows * layout.registers]
    cls, registers, rest = table.split([*counts, table.shape[1] - sum(counts)], dim=1)
    if after.cls and not before.cls:
        cls = table.new_zeros(len(table), layout.cls, table.shape[2])
    if after.register_rows and not before.register_rows:
        registers = table.new_zeros(len(table), layout.registers, table.shape[2])
    if before.register_rows and not after.register_rows:
        tokens = torch.cat([tokens[: layout.cls], tokens[layout.cls :] + registers[0]])
        registers = registers[:, :0]
    return {TOKENS: tokens, TABLE: torch.cat([cls, registers, rest], dim=1)}
