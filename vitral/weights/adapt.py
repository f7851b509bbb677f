"""Old weights in a new model: another head, image size, number of channels, or fewer layers, and nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from vitral.config import Size, override
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.scaling import Scaling
from vitral.errors import ConfigError
from vitral.model.bit import Resnet
from vitral.model.contract import Model, misfits, refuse
from vitral.model.head import Classifier, HeadConfig, NoHead
from vitral.model.initial import Original
from vitral.model.place import Placed
from vitral.model.pool import AttentionPool
from vitral.model.vit import Vit
from vitral.weights.layers import other_channels, some_layers
from vitral.weights.load import Loaded

REMEDY = "build the model that the weights are of; only its head, image, channels and a smaller depth may differ"
CHANGES = ("image", "channels")  # that a model takes while it stays what it is
# Fields that change no answer of the weights, or that a new run chooses anew.
FREE = (
    "image",
    "any_size",
    "channels",
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

    The new head starts at zero (section 3.2 of the paper), positions are resampled to the grid of the new image size,
    the first map is summed or repeated for other channels, and of a deeper source the first layers are taken. What the
    source never learnt, the pool and the head of masked patches, is left as it was built. All else must be the same;
    else nothing is changed and WeightsError tells each difference.
    """
    new, old = model.config, source.bundle.model
    fresh = ("head.", "pool.") if source.bundle.task == "masked" else ("head.",)
    own = model.state_dict()
    weights = {name: tensor for name, tensor in source.model.state_dict().items() if not name.startswith(fresh)}
    faults = differences(old, new, fresh)
    resampled: dict[str, Tensor] = {}
    if not faults:
        weights = _fitted(weights, old, new)
        resampled = _regridded(model, weights, old)
    weights |= resampled
    weights |= {name: tensor for name, tensor in own.items() if name.startswith(fresh)}
    refuse(faults + misfits(own, weights), "weights", REMEDY, "weights.config_mismatch")
    model.load(weights)
    for part in model.head.modules():
        if isinstance(part, Classifier):
            part.initialise(Original())
    return tuple(_told(new, source, bool(resampled)))


class Adapted(NamedTuple):
    """A model made from another, and what was done to it, a sentence each."""

    loaded: Loaded
    told: tuple[str, ...]


def adapt(source: Loaded, *settings: str, layers: Sequence[int] = (), classes: Sequence[str] = ()) -> Adapted:
    """The same model for other images, or with some of its layers: `adapt(loaded, "image=384", layers=(0, 2, 4))`.

    Settings are `image` and `channels`. The head stays as it is; with names of classes there is a new one of zeros.
    """
    refuse_other_changes(settings)
    bundle = source.bundle
    old, told = bundle.model, []
    weights = dict(source.model.state_dict())
    if layers:
        if not isinstance(old, Vit):
            what = "a ResNet has no layers to choose from"
            raise ConfigError(what, code="config.unsupported", where="layers", remedy="leave them out")
        weights = some_layers(weights, old, layers)
        told.append(f"layers {', '.join(map(str, layers))} of {old.depth} taken")
        old = old.model_copy(update={"depth": len(layers)})
    new = override(old, settings)
    frame = new.skeleton()
    weights = _fitted(weights, old, new)
    resampled = _regridded(frame, weights, old)
    frame.load(weights | resampled)
    image = new.image if new.image != old.image else bundle.preprocessing.image  # DINOv2 shows others than its own
    needs = other_images(bundle.preprocessing, image, new.channels)
    made = Loaded(frame.eval(), bundle.model_copy(update={"model": new, "preprocessing": needs}))
    told += _told_of_images(old, new, bool(resampled))
    if classes:
        made = _with_classes(made, tuple(classes))
        told += _told_of_heads(old.head, made.bundle.model.head)
    return Adapted(made, tuple(told))


def refuse_other_changes(settings: Sequence[str]) -> None:
    """Say of any other setting that weights are not adapted to it."""
    for name in (each.partition("=")[0] for each in settings):
        if name not in CHANGES:
            what, remedy = (
                "is not something that weights are adapted to",
                "change the image size and the channels alone",
            )
            raise ConfigError(what, code="config.unsupported", where=name, remedy=remedy)


def other_images(needs: Preprocessing, image: Size, channels: int) -> Preprocessing:
    """The preprocessing for another image size and number of channels, one mean for all if there were several."""
    scaling, decoding = needs.scaling, needs.decoding.model_copy(update={"channels": channels})
    if len(scaling.mean) not in {1, channels}:
        means, deviations = sum(scaling.mean) / len(scaling.mean), sum(scaling.deviation) / len(scaling.deviation)
        scaling = Scaling(mean=(means,), deviation=(deviations,))
    return needs.model_copy(update={"image": image, "scaling": scaling, "decoding": decoding})


def _with_classes(source: Loaded, classes: tuple[str, ...]) -> Loaded:
    """The model with a head of zeros for other classes."""
    model = override(source.bundle.model, ["head=linear", f"head.classes={len(classes)}"])
    fresh = model.build()
    adapted(fresh, source)
    bundle = source.bundle.model_copy(update={"model": model, "classes": classes, "task": "classify"})
    return Loaded(fresh.eval(), bundle)


def differences(old: Vit | Resnet, new: Vit | Resnet, fresh: tuple[str, ...]) -> list[str]:
    """The fields in which the models differ although the weights need them alike."""
    before, after = _leaves(old.model_dump(mode="json")), _leaves(new.model_dump(mode="json"))
    free = tuple(f"{name}." for name in FREE) + fresh
    fewer = ("depth",) if before.get("depth", 0) > after.get("depth", 0) else ()
    names = [name for name in before | after if not f"{name}.".startswith(free) and name not in fewer]
    return [
        f"{name} is {after.get(name, 'absent')}, and {before.get(name, 'absent')} in the weights"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _fitted(weights: dict[str, Tensor], old: Vit | Resnet, new: Vit | Resnet) -> dict[str, Tensor]:
    """The weights for fewer layers and other channels."""
    if isinstance(old, Vit) and isinstance(new, Vit) and new.depth < old.depth:
        weights = some_layers(weights, old, range(new.depth))
    return weights if new.channels == old.channels else weights | other_channels(weights, old, new.channels)


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


def _told(new: Vit | Resnet, source: Loaded, resampled: bool) -> Iterator[str]:
    """What was done, a sentence each."""
    old, masked = source.bundle.model, source.bundle.task == "masked"
    if told := ", ".join(_told_of_heads(NoHead() if masked else old.head, new.head)):
        yield told
    if masked and isinstance(new, Vit) and isinstance(new.pool, AttentionPool):
        yield "the pool, which masked patches do not train, starts afresh"
    if isinstance(old, Vit) and isinstance(new, Vit) and new.depth < old.depth:
        yield f"the first {new.depth} of {old.depth} layers taken"
    yield from _told_of_images(old, new, resampled)


def _told_of_images(old: Vit | Resnet, new: Vit | Resnet, resampled: bool) -> Iterator[str]:
    if new.channels != old.channels:
        how = "summed" if new.channels == 1 else f"repeated and scaled by {old.channels / new.channels:.3g}"
        yield f"the stem's weights for {old.channels} channels {how} for {new.channels}"
    if resampled:
        yield f"positions resampled from {old.layout(old.image).grid} to {new.layout(new.image).grid}"


def _told_of_heads(old: HeadConfig, new: HeadConfig) -> Iterator[str]:
    if not isinstance(old, NoHead):
        yield f"head of {old.classes} classes dropped"
    if not isinstance(new, NoHead):
        what = f"a new head of {new.classes} classes" if isinstance(old, NoHead) else f"a new one of {new.classes}"
        yield f"{what} starts at zero"
        if new.bias:
            yield f"its bias at {new.bias:g}"
