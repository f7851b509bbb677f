"""What training scripts wrap around a state dict: one set of weights is found or chosen, the rest is named.

`{"model": ..., "model_ema": ..., "optimizer": ..., "epoch": 3}` holds two sets, of which the user chooses one by its
key; `{"state_dict": ..., "args": ...}` holds one. A key may go several levels down: `state_dict.model_ema`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitral.core.errors import WeightsError, format_choices

ROOT = ""  # the key of the whole file
MOST_LEVELS = 4
SHOWN = 6  # entries that a message names
# State of a training, which is no set of weights even where it holds tensors by name.
TRAINING_STATE = re.compile(r"(optim|lr_|sched|scaler|loss_scaler|amp|rng|random|callbacks|criterion|dino_loss|ibot)")
OPTIMIZER = {"state", "param_groups"}  # the entries of torch's optimizers
# Of a student and its teacher, the teacher is the model that the authors publish and evaluate.
PREFERRED = {
    frozenset({"student", "teacher"}): "teacher",
    frozenset({"encoder", "predictor", "target_encoder"}): "target_encoder",  # of I-JEPA
}


class StateDict(NamedTuple):
    """The tensors of one set of weights by name, and messages about what else the file holds."""

    tensors: Mapping[str, Tensor]
    messages: tuple[str, ...] = ()


def select_state_dict(content: Any, key: str, where: Path) -> StateDict:
    """The set of weights that a key names, or the only one; WeightsError lists the sets if there are several."""
    sets = dict(_state_dicts(content, ROOT, MOST_LEVELS))
    if key:
        if found := _by_key(content, key):
            return StateDict(found)
        if len(sets) == 1 and ROOT not in sets and _below(inner := _tensors(*sets.values()), key):
            return select_prefix(inner, key, where)
        raise _unknown_key(key, [name for name in sets if name], where)
    if not sets and isinstance(content, Mapping) and content.keys() >= OPTIMIZER:
        message, hint = f"holds the state of an optimizer ({_entries(content)}), no weights", "give the model's weights"
        raise WeightsError(message, code="weights.not_state_dict", where=where, hint=hint)
    if not sets:
        entries = f": {_entries(content)}" if isinstance(content, Mapping) and content else ""
        raise WeightsError(f"holds no tensors by name{entries}", code="weights.not_state_dict", where=where)
    chosen = PREFERRED.get(frozenset(sets), ROOT) if len(sets) > 1 else next(iter(sets))
    if chosen not in sets:
        message = f"holds several sets of weights: {_counts(sets)}"
        hint = f"choose one: --weights-key {next(iter(sets))}, or weights_key={next(iter(sets))!r} in Python"
        raise WeightsError(message, code="weights.ambiguous", where=where, hint=hint)
    messages = [f"of {_counts(sets)} read {chosen}; the other is read with --weights-key"] * (len(sets) > 1)
    others = {name: value for name, value in _beside(content, chosen) if name not in sets}
    messages += [f"ignored beside the weights: {_entries(others)}"] * bool(others)
    return StateDict(_tensors(sets[chosen]), tuple(messages))


def select_prefix(tensors: Mapping[str, Tensor], key: str, where: Path) -> StateDict:
    """The tensors below a key in a file that has no nesting: `model_ema` takes `model_ema.norm.weight`."""
    if found := _below(tensors, key):
        others = sorted(name for name in tensors if not name.startswith(f"{key}."))
        words = f"ignored {len(others)} tensors outside of {key}: {', '.join(others[:SHOWN])}"
        return StateDict(found, (words,) if others else ())
    raise _unknown_key(key, sorted({name.partition(".")[0] for name in tensors if "." in name}), where)


def _state_dicts(content: Any, path: str, levels: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sets of weights in a file, each by its key: dictionaries with tensors by name."""
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        return
    inner = [(name, value) for name, value in content.items() if levels and not TRAINING_STATE.match(name)]
    below = [
        found for name, value in inner for found in _state_dicts(value, f"{path}.{name}" if path else name, levels - 1)
    ]
    own = sum(isinstance(value, Tensor) and value.ndim > 0 for value in content.values())
    if own and own >= max((len(_tensors(found)) for _, found in below), default=0):
        yield path, content
    else:
        yield from below  # a few tensors beside a set, such as class weights, are no set


def _by_key(content: Any, key: str) -> dict[str, Tensor]:
    """What a key names: an entry, an entry of an entry, or all names with that prefix; nothing if there is none."""
    if not isinstance(content, Mapping):
        return {}
    for head, value in content.items():
        if head == key and isinstance(value, Mapping):
            return _tensors(value)
        if isinstance(head, str) and isinstance(value, Mapping) and key.startswith(f"{head}."):
            return _by_key(value, key.removeprefix(f"{head}."))
    return _below(_tensors(content), key)


def _below(tensors: Mapping[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{key}."): tensor for name, tensor in tensors.items() if name.startswith(f"{key}.")}


def _unknown_key(key: str, known: list[str], where: Path) -> WeightsError:
    message = f"holds no weights under {key!r}"
    hint = (
        f"its sets of weights are {format_choices(known[:SHOWN])}" if known else "it holds one set: leave the key out"
    )
    return WeightsError(message, code="weights.unknown_key", where=where, hint=hint)


def _tensors(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


def _beside(content: Mapping[str, Any], chosen: str) -> Iterator[tuple[str, Any]]:
    """The entries around and within the chosen set that are not its tensors."""
    for name, value in content.items():
        inside = chosen == name or chosen.startswith(f"{name}.")
        if inside and isinstance(value, Mapping):
            yield from _beside(value, chosen.removeprefix(name).removeprefix("."))
        elif chosen or not isinstance(value, Tensor):
            yield name, value


def _entries(content: Mapping[Any, Any]) -> str:
    """The entries of a file by name, short values with them: `epoch 3, optimizer`."""
    names = [
        f"{name} {value!r}" if isinstance(value, int | float | str) else str(name) for name, value in content.items()
    ]
    shown = [name if len(name) <= 60 else f"{name[:60]}..." for name in names[:SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _counts(sets: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name or 'the file itself'} ({len(_tensors(found))} tensors)" for name, found in sets.items())
