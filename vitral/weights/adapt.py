"""Old weights in a new model: another head, another image size, and nothing else."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitral.model.bit import Resnet
from vitral.model.contract import Model, misfits, refuse
from vitral.model.head import Classifier, HeadConfig, NoHead
from vitral.model.initial import Original
from vitral.model.place import Placed
from vitral.model.pool import AttentionPool
from vitral.model.vit import Vit
from vitral.weights.load import Loaded

REMEDY = "build the model that the weights are of; only its head and its image size may differ"
# Fields that change no answer of the weights, or that a new run chooses anew.
FREE = (
    "image",
    "any_size",
    "head",
    "initial",
    "memory",
    "tokens.dropout",
    "position.resampling",
    "block.drop_path",
    "block.scale.initial",
    "mixer.dropout",
    "mixer.attention_dropout",
    "mlp.dropout",
)


def adapted(model: Model, source: Loaded) -> tuple[str, ...]:
    """Start a freshly built model from old weights, and tell what was done to them, a sentence each.

    The new head starts at zero (section 3.2 of the paper), positions are resampled to the grid of the new image size.
    What the source never learnt, the pool and the head of masked patches, is left as it was built. All else must be
    the same; else nothing is changed and WeightsError tells each difference.
    """
    new, old = model.config, source.bundle.model
    fresh = ("head.", "pool.") if source.bundle.task == "masked" else ("head.",)
    own = model.state_dict()
    weights = {name: tensor for name, tensor in source.model.state_dict().items() if not name.startswith(fresh)}
    faults = differences(old, new, fresh)
    regridded = {} if faults else _regridded(model, weights, old)
    weights = weights | regridded | {name: tensor for name, tensor in own.items() if name.startswith(fresh)}
    refuse(faults + misfits(own, weights), "weights", REMEDY)
    model.load(weights)
    for part in model.head.modules():
        if isinstance(part, Classifier):
            part.initialise(Original())
    return tuple(_told(new, source, bool(regridded)))


def differences(old: Vit | Resnet, new: Vit | Resnet, fresh: tuple[str, ...]) -> list[str]:
    """The fields in which the models differ although the weights need them alike."""
    before, after = _leaves(old.model_dump(mode="json")), _leaves(new.model_dump(mode="json"))
    free = tuple(f"{name}." for name in FREE) + fresh
    names = [name for name in before | after if not f"{name}.".startswith(free)]
    return [
        f"{name} is {after.get(name, 'absent')}, and {before.get(name, 'absent')} in the weights"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _leaves(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Plain data by dotted name: `mixer.heads`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= _leaves(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def _regridded(model: Model, weights: Mapping[str, Tensor], old: Vit | Resnet) -> dict[str, Tensor]:
    """The weights that know places, resampled; none where the grid is the same."""
    grid = old.layout(old.image).grid
    if model.config.layout(model.config.image).grid == grid:
        return {}
    found: dict[str, Tensor] = {}
    for home, part in model.named_modules():
        if isinstance(part, Placed):
            mine = {name: weights[f"{home}.{name}"] for name in part.state_dict()}
            found |= {f"{home}.{name}": tensor for name, tensor in part.regridded(mine, grid).items()}
    return found


def _told(new: Vit | Resnet, source: Loaded, regridded: bool) -> Iterator[str]:
    """What was done, a sentence each."""
    old, masked = source.bundle.model, source.bundle.task == "masked"
    if told := ", ".join(_told_of_heads(NoHead() if masked else old.head, new.head)):
        yield told
    if masked and isinstance(new, Vit) and isinstance(new.pool, AttentionPool):
        yield "the pool, which masked patches do not train, starts afresh"
    if regridded:
        yield f"positions resampled from {old.layout(old.image).grid} to {new.layout(new.image).grid}"


def _told_of_heads(old: HeadConfig, new: HeadConfig) -> Iterator[str]:
    if not isinstance(old, NoHead):
        yield f"head of {old.classes} classes dropped"
    if not isinstance(new, NoHead):
        what = f"a new head of {new.classes} classes" if isinstance(old, NoHead) else f"a new one of {new.classes}"
        yield f"{what} starts at zero"
        if new.bias:
            yield f"its bias at {new.bias:g}"
