"""Which architectures of timm a file without a name may be: those that have its tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from vitral.core.config import override
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.timm.architectures import Architecture, architectures
from vitral.weights.formats.timm.resolve import Resolved, native_sizes, plausible_grids, resolve, table_cells
from vitral.weights.formats.timm.signature import tensor_signature

# Settings that do not change what a trained model answers.
TRAINING_ONLY = ("tokens.dropout", "block.drop_path_rate", "block.scale.init", "mlp.dropout", "mixer.dropout",
                 "mixer.attention_dropout", "init", "memory")  # fmt: skip
SHOWN = 4  # settings in which candidates differ


class Candidate(NamedTuple):
    """An architecture, and the model that the file is if it is of this architecture."""

    arch: Architecture
    resolved: Resolved
    native: bool  # whether the positions are for an image size of its published weights


def matching(ckpt: Checkpoint) -> list[Architecture]:
    """The architectures that have tensors of these names and shapes, whatever the depth and the image size."""
    signature = tensor_signature({name: tuple(tensor.shape) for name, tensor in ckpt.tensors.items()})
    return [arch for arch in architectures().values() if arch.signature == signature]


def choose(ckpt: Checkpoint, found: Sequence[Architecture]) -> Candidate:
    """The architecture of the file; WeightsError with all candidates if they are not one and the same model."""
    fitting = [arch for arch in found if fits_natively(ckpt, arch)]
    chosen = fitting or list(found)
    if not fitting:
        check_grid(ckpt, found)
    candidates, faults = list[Candidate](), list[WeightsError]()
    for arch in chosen:
        try:
            resolved = resolve(ckpt, arch.kind, arch.arguments, native_sizes(arch), exact=False)
            candidates.append(Candidate(arch, resolved, bool(fitting)))
        except WeightsError as error:
            faults.append(error)
    names = format_choices(arch.name for arch in chosen)
    if not candidates:
        message = f"{faults[0].message}; its tensors are those of timm's {names}"
        raise WeightsError(message, code=faults[0].code, where=faults[0].where, hint=faults[0].hint)
    models = [answering(ckpt, candidate.resolved.found.model) for candidate in candidates]
    if faults or any(model != models[0] for model in models):
        differing = ", ".join(dict.fromkeys(differences(models)))
        message = f"has the tensors of timm's {names}, which differ{f' in {differing}' if differing else ''}"
        hint = f"say which it is: {ckpt.convert_command('--arch NAME')}"
        raise ckpt.error(message, "weights.ambiguous", hint)
    return max(candidates, key=lambda each: preference(ckpt, each))


def preference(ckpt: Checkpoint, candidate: Candidate) -> tuple[bool, bool, bool]:
    """Whose preprocessing is assumed, among architectures that are the same model."""
    facts, model = candidate.arch.image_facts(), candidate.resolved.found.model
    same_size = list(facts["input_size"][-2:]) == list(model.image_size)
    depth = candidate.arch.arguments.get("depth", 12)
    return same_size, depth == model.depth, candidate.arch.name.startswith("vit_")


def fits_natively(ckpt: Checkpoint, arch: Architecture) -> bool:
    """Whether the table of positions is for an image size of the published weights, or there is no table."""
    if ckpt.setting("image_size"):
        return True
    cells = table_cells(ckpt, arch.kind, arch.arguments)
    return cells is None or any(cells.has(size) for size in native_sizes(arch))


def check_grid(ckpt: Checkpoint, found: Sequence[Architecture]) -> None:
    """Refuse a table that is a square for one candidate, and for another one that is not."""
    squares, others = list[str](), list[str]()
    for arch in found:
        cells = table_cells(ckpt, arch.kind, arch.arguments)
        if cells is not None and cells.square() is not None:
            squares.append(arch.name)
        elif cells is not None and any(plausible_grids(cells.rows)):
            others.append(arch.name)
    if others:
        names = format_choices(arch.name for arch in found)
        message = f"has positions for a grid that is not recorded, and the tensors of timm's {names}"
        raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH")


def answering(ckpt: Checkpoint, model: Vit) -> Mapping[str, Any]:
    """The settings of a model, with those of the user, without those that only training uses."""
    with suppress(ConfigError):  # which is reported for the chosen one
        model = override(model, ckpt.settings)
    return {path: value for path, value in flat(model.model_dump()) if not path.startswith(TRAINING_ONLY)}


def flat(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by their paths."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def differences(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The settings in which models differ, with their values."""
    paths = [path for path in models[0] if any(model.get(path) != models[0][path] for model in models)]
    for path in paths[:SHOWN]:
        values = dict.fromkeys(str(model.get(path)) for model in models)
        yield f"{path} ({format_choices(values)})"
