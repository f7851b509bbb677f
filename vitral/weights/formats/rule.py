"""Rules: which tensors of ours are which of theirs, in both directions.

A format is a list of rules for a model. What to expect in a file, and of what shape, follows from writing the model's
own skeleton by the same rules, so nothing is said twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitral.config import Size
from vitral.errors import WeightsError
from vitral.model.contract import Fault, refuse
from vitral.model.patches import kernel_to_linear, linear_to_kernel

Change = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """Some tensors of ours, the tensors of theirs that hold the same numbers, and the way from each to the other."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Change  # theirs to ours
    write: Change  # ours to theirs


def same(ours: str, theirs: str) -> Rule:
    """A tensor that differs in its name alone."""
    return Rule((ours,), (theirs,), lambda found: found, lambda own: own)


def changed(ours: str, theirs: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    """A tensor that is laid out otherwise."""
    return Rule((ours,), (theirs,), lambda found: [read(found[0])], lambda own: [write(own[0])])


def affine(ours: str, theirs: str, bias: bool = True) -> list[Rule]:
    """The weight and the bias of a linear map or a norm."""
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")[: 1 + bias]]


def stacked(ours: str, theirs: Sequence[str]) -> Rule:
    """Maps that stand apart in their files and above one another in ours."""
    return Rule((ours,), tuple(theirs), lambda found: [torch.cat(list(found))], lambda own: own[0].chunk(len(theirs)))


def split(ours: Sequence[str], theirs: str, sizes: Sequence[int]) -> Rule:
    """Rows that stand above one another in their files and apart in ours."""
    return Rule(tuple(ours), (theirs,), lambda found: found[0].split(list(sizes)), lambda own: [torch.cat(list(own))])


def kernel(ours: str, theirs: str, patch: Size) -> Rule:
    """A strided convolution in their files, a map of flattened patches in ours."""
    return changed(ours, theirs, kernel_to_linear, lambda weight: linear_to_kernel(weight, patch))


def absent(ours: str, shape: Sequence[int], value: float, what: str) -> Rule:
    """A tensor that their files have no place for, since it is always the same there."""

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        if not own[0].is_meta and not bool((own[0] == value).all()):
            fault = f"{what}, which is not {value:g} in this model, has no counterpart"
            raise WeightsError(fault, code="weights.no_counterpart", where=ours)
        return []

    return Rule((ours,), (), lambda found: [torch.full(tuple(shape), value)], write)


def shapes(rules: Iterable[Rule], own: Weights) -> dict[str, torch.Size]:
    """The names and shapes of theirs, for a model of ours with these tensors, which may be a skeleton's."""
    return {name: tensor.shape for name, tensor in _written(rules, own)}


def written(rules: Iterable[Rule], own: Weights) -> dict[str, Tensor]:
    """Our tensors as theirs."""
    return {name: tensor.contiguous() for name, tensor in _written(rules, own)}


def translated(rules: Sequence[Rule], own: Weights, found: Weights, where: str, remedy: str) -> dict[str, Tensor]:
    """Their tensors as ours; what is missing, not expected or of another shape is refused, by their names."""
    expected = shapes(rules, own)
    faults = [Fault(f"{name} is missing", "weights.missing_tensor") for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    faults += [Fault(f"{name} is not expected", "weights.unexpected_tensor") for name in unknown]
    for name, shape in expected.items():
        if name not in found:
            continue
        if not found[name].is_floating_point():
            what = f"{name} holds {found[name].dtype}, expected floating point"
            faults.append(Fault(what, "weights.wrong_type"))
        elif found[name].shape != shape:
            what = f"{name} has shape {tuple(found[name].shape)}, expected {tuple(shape)}"
            faults.append(Fault(what, "weights.shape_mismatch"))
    refuse(faults, where, remedy)
    return {
        name: tensor
        for rule in rules
        for name, tensor in zip(rule.ours, rule.read([found[each] for each in rule.theirs]), strict=True)
    }


def _written(rules: Iterable[Rule], own: Weights) -> Iterator[tuple[str, Tensor]]:
    for rule in rules:
        yield from zip(rule.theirs, rule.write([own[name] for name in rule.ours]), strict=True)
