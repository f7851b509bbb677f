"""Loading: a path becomes a model that is ready to use."""

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitral.core.config import override
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.core.imports import pause_gc
from vitral.models.base import Model
from vitral.models.head import NoHead
from vitral.models.resnet import Resnet
from vitral.weights.bundle import MODEL, Bundle, is_bundle, read_bundle
from vitral.weights.card import architecture
from vitral.weights.formats.format import DetectedModel, FileSettings
from vitral.weights.formats.rules import import_tensors
from vitral.weights.hub import FetchedWeights, fetch_weights
from vitral.weights.reader import read_checkpoint, shard_files

log = logging.getLogger("vitral")
CHUNK_BYTES = 2**24  # bytes
# What files of some kind do not tell.
SETTINGS = ("image_size", "channels", "stem.patch", "mixer.heads", "mixer.head_width", "mlp.gelu", "pool")
RUN = ("recipe.json", "environment.json")  # by which a run is known before it has a bundle
EXPECTED = "expected a run (best/, last/), a bundle (model.safetensors, config.json), or weights of another library"


class LoadedModel(NamedTuple):
    """A model with its weights, in evaluation mode, and all that they need."""

    model: Model
    bundle: Bundle


class LoadOptions(NamedTuple):
    """How weights of others are read: which of two kinds they are, and what is allowed."""

    format: str = ""
    allow_pickle: bool = False
    offline: bool = False  # a model of the hub comes from the cache alone


DEFAULT_OPTIONS = LoadOptions()


class OpenedModel(NamedTuple):
    """A model, the file that its weights are in, and what was found out about it, a sentence each."""

    loaded: LoadedModel
    file: Path
    told: tuple[str, ...]


def load(
    where: str | Path, *settings: str, format: str = "", allow_pickle: bool = False, offline: bool = False
) -> LoadedModel:
    """The model of a run, of a bundle, or of another library: `model, bundle = vitral.load("runs/photos")`.

    `hf:owner/name` is a model of the hub. Settings such as `mixer.heads=6` tell what a file of others does not, and
    `format` which of two kinds it is. The weights are mapped from the disk as they are used, and changing them changes
    no file.
    """
    with pause_gc():
        found = open_model(where, *settings, reading=LoadOptions(format, allow_pickle, offline))
    for line in found.told:
        log.info(line)
    return found.loaded


def open_model(where: str | Path, *settings: str, reading: LoadOptions = DEFAULT_OPTIONS) -> OpenedModel:
    """The same, with what there is to tell of it, and nothing said."""
    place = fetch_weights(str(where), reading.offline)
    check_path(place.path)
    if (home := find_bundle(place.path)) is None:
        return _foreign(place, settings, reading)
    if settings or reading.format:
        message = f"a bundle tells all about itself, and takes no {settings[0] if settings else 'format'}"
        raise ConfigError(message, code="config.conflict", where=str(home), hint="leave it out")
    bundle, tensors = read_bundle(home)
    model = bundle.model.build_empty()
    try:
        model.load_weights(tensors)
    except WeightsError as error:
        raise WeightsError(error.message, code=error.code, where=str(home / MODEL), hint=error.hint) from None
    model.activation = bundle.activation
    return OpenedModel(LoadedModel(model.eval(), bundle), home / MODEL, ())


def find_bundle(path: Path) -> Path | None:
    """The bundle that a path stands for: the folder itself, or a run's best, or its last where there is no best."""
    homes = (path, path / "best", path / "last")
    return next((home for home in homes if is_bundle(home)), None)


def check_path(path: Path) -> None:
    """Say what a path is that holds no weights to use, and what to give instead."""
    where = str(path)
    if is_bundle(path):
        return
    if not path.exists():
        message = f"there is no such file or folder; {EXPECTED}"
        raise WeightsError(message, code="weights.not_found", where=where, hint="check the path")
    if path.is_file() and is_bundle(path.parent):
        hint = f"give the folder: {path.parent}"
        raise WeightsError("a file of a bundle", code="weights.wrong_path", where=where, hint=hint)
    if (path / "export.json").exists():
        message, hint = f"an export, which is for vitral predict; {EXPECTED}", "give the model that it was made of"
        raise WeightsError(message, code="weights.wrong_path", where=where, hint=hint)
    if path.is_file() and (path.parent / "export.json").exists():
        hint = f"give the folder, to predict: {path.parent}"
        raise WeightsError("a file of an export", code="weights.wrong_path", where=where, hint=hint)
    if re.fullmatch(r"step-[0-9]+", path.name) and path.parent.name == "checkpoints":
        run = path.parent.parent
        raise WeightsError(
            f"a checkpoint, which is for its run to go on from; {EXPECTED}",
            code="weights.wrong_path",
            where=where,
            hint=f"give the run, {run}, or one of its bundles, {run / 'best'} and {run / 'last'}",
        )
    if all((path / name).exists() for name in RUN) and not any(is_bundle(path / name) for name in ("best", "last")):
        hint = f"let it go on until its first evaluation: vitral train --resume {path}"
        message = "a run that has written no bundle yet"
        raise WeightsError(message, code="weights.no_bundle", where=where, hint=hint)


def _foreign(place: FetchedWeights, settings: tuple[str, ...], reading: LoadOptions) -> OpenedModel:
    """A model from a file of another library, as that library would run it."""
    from vitral.weights.formats.registry import (
        detect_format,
        strip_wrapper,
    )  # with all formats, which a bundle does without

    raw, wrapper = strip_wrapper(read_checkpoint(place.path, reading.allow_pickle))
    kind = detect_format(raw, reading.format)
    check_settings(settings)
    try:
        found = kind.recognize(raw, FileSettings(settings))
        config = override(found.model, settings)
    except ConfigError as error:
        raise _in_file(raw.where, error, "weights.bad_setting" if settings else "weights.bad_config") from None
    assert not isinstance(config, Resnet)
    frame = config.build_empty()
    hint = f"this is {found.title} with {config.depth} layers of width {config.width}: give a whole file of one"
    if FileSettings(settings).told("image_size"):
        hint += "; for images of another size, convert it with --image-size"
    ours = import_tensors(kind.rules(config), frame.state_dict(), found.tensors, str(raw.where), hint)
    try:
        frame.load_weights({name: tensor.float() for name, tensor in ours.items()})
    except WeightsError as error:
        message = describe_non_finite(found.tensors) or error.message
        raise WeightsError(message, code=error.code, where=str(raw.where), hint=error.hint) from None
    seen = found.preprocessing  # of DINOv2 it shows images of another size than the positions were made for
    if config.image_size != found.model.image_size:
        seen = seen.model_copy(update={"image_size": config.image_size})
    try:
        bundle = Bundle(
            model=config,
            task="features" if isinstance(config.head, NoHead) else "classify",
            preprocessing=seen,
            classes=found.classes,
            source=f"{found.title}, from {place.source or raw.where.name}",
        )
    except ConfigError as error:  # what is noted beside the weights does not go with them
        raise _in_file(raw.where.parent, error, "weights.bad_config") from None
    names = (f"left out {wrapper!r} before every name, which a training script put there",) if wrapper else ()
    return OpenedModel(
        LoadedModel(frame.eval(), bundle), raw.where, (*describe_checkpoint(found), *names, *_told_of_bits(found))
    )


def _in_file(path: Path, error: ConfigError, code: str) -> WeightsError:
    """The same fault, told as one of a file or folder of others."""
    where = ", ".join(filter(None, (str(path), error.where)))
    return WeightsError(error.message, code=code, where=where, hint=error.hint)


def describe_non_finite(tensors: Mapping[str, Tensor]) -> str:
    """Which values are not finite, by the names that the file has."""
    counts = {name: int((~tensor.isfinite()).sum()) for name, tensor in tensors.items()}
    faults = [
        f"{name} has {count} of {tensors[name].numel()} values not finite" for name, count in counts.items() if count
    ]
    return "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")


def check_settings(settings: tuple[str, ...]) -> None:
    """Settings tell what files leave open; what they do not is not to be changed on the way in."""
    for name in (each.partition("=")[0] for each in settings):
        if name not in SETTINGS:
            message = "is not something that a file of weights leaves open"
            hint = f"what may be told is {format_choices(SETTINGS)}"
            raise ConfigError(message, code="config.unsupported", where=name, hint=hint)


def describe_checkpoint(found: DetectedModel) -> list[str]:
    """What was recognized, in a line, and a line for each thing that was left out or assumed."""
    lines = [f"recognized {found.title}: {architecture(found.model).partition(': ')[2]}"]
    reasons: dict[str, list[str]] = {}
    for name, reason in found.dropped.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"left out {names[0]}{more}: {reason}")
    return lines + [f"assumed: {words}" for words in found.assumed]


def _told_of_bits(found: DetectedModel) -> list[str]:
    """A line where the weights were kept in other than 32 bits."""
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in found.tensors.values()} - {"float32"})
    return [f"weights in {' and '.join(kinds)}, read as float32"] if kinds else []


def hash_weights(path: Path) -> str:
    """The sha256 of a file of weights; of an index, that of all of its files one after the other."""
    found = hashlib.sha256()
    for part in shard_files(path):
        with part.open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                found.update(piece)
    return found.hexdigest()
