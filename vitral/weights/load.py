"""Load a model from a run, a bundle, the Hugging Face hub, or a checkpoint of another library."""

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from torch import Tensor

from vitral.core.config import override
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.core.imports import pause_gc
from vitral.core.manifest import FileCheck, FileStatus, file_policy, hash_files, refuse_unsigned
from vitral.models.base import Grid, Model
from vitral.models.first_use import check_on_first_use
from vitral.models.head import NoHead
from vitral.models.position import GridDependent
from vitral.models.resnet import Resnet
from vitral.models.vit import VisionTransformer, Vit
from vitral.weights.bundle import MODEL, Bundle, begin_bundle, is_bundle
from vitral.weights.card import architecture
from vitral.weights.formats.format import ANOTHER_MODEL, Checkpoint, DetectedModel, Format
from vitral.weights.formats.mapping import WeightMap, mapped_layout
from vitral.weights.formats.rules import Rule, import_tensors
from vitral.weights.hub import FetchedWeights, fetch_weights
from vitral.weights.reader import DEFAULT_OPTIONS, ReadOptions, read_checkpoint, shard_files

log = logging.getLogger("vitral")
MAX_STRETCH = 2.0  # of a position table, before a message says so
# Settings that some checkpoints do not record.
SETTINGS = (
    "image_size",
    "channels",
    "stem.patch",
    "position.resampling",
    "position.precision",
    "mixer.heads",
    "mixer.head_width",
    "mixer.scale",
    "mlp.activation",
    "pool",
)
RUN = ("recipe.json", "environment.json")  # the files of a run that has no bundle yet
# Bundles of older formats do not record the activation.
UNRECORDED_ACTIVATION = (
    "assumed: softmax probabilities; this older bundle does not record them, and sigmoid loss would need sigmoid"
)
SAFE = (".safetensors", ".json")  # a file, or the index of several
EXPECTED = "expected a run (best/, last/), a bundle (model.safetensors, config.json), or weights of another library"


class LoadedModel(NamedTuple):
    """A model with its weights, in evaluation mode, and its bundle: preprocessing, classes, task."""

    model: Model
    bundle: Bundle


class LoadOptions(TypedDict, total=False):
    """The fields of `ReadOptions` as keywords of `vitral.load` and `vitral.convert`."""

    format: str
    arch: str
    weights_key: str
    allow_pickle: bool
    offline: bool


class SourceCheckpoint(NamedTuple):
    """The checkpoint of another library that a model was read from."""

    format: Format
    ckpt: Checkpoint  # its tensors by the names in the file
    found: DetectedModel  # its tensors by the names that the rules have
    plain: bool  # whether the file itself holds just these tensors under these names, as safetensors

    def rules(self) -> list[Rule]:
        """The rules that it was read by."""
        assert isinstance(self.found.model, Vit)
        own = self.found.model.build_empty().state_dict()
        return (self.found.rules or self.format.rules)(self.found.model, own)


class OpenedModel(NamedTuple):
    """A model, the file of its weights, messages about how it was read, and the checkpoint if it is no bundle."""

    loaded: LoadedModel
    file: Path
    messages: tuple[str, ...]
    source: SourceCheckpoint | None = None
    check: FileCheck | None = None  # of the files of a bundle

    @property
    def files(self) -> FileStatus:
        """Whether its files were checked."""
        return self.check.status if self.check else "unverified"


def load(
    where: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    trust: bool = False,
    verify: bool = False,
    verify_files: bool = True,
    require_signature: str | Path = "",
    **options: Unpack[LoadOptions],
) -> LoadedModel:
    """Load a run, a bundle, or a checkpoint of another library: `model, bundle = vitral.load("runs/photos")`.

    `hf:owner/name` is a model of the hub. Settings such as `{"mixer.heads": 6}` give what a checkpoint does not record;
    `arch` gives all of it by the library's own name for the architecture, such as timm's `vit_base_patch16_224`.
    `format` decides where the tensor names fit two formats, `weights_key` where a file holds several sets of weights.
    The weights are memory-mapped; changing them changes no file. `trust` allows a model with classes of your own to
    import them. `verify` runs the library that wrote the file, which must be installed, in a separate process, and
    refuses the model if its outputs differ.

    The files of a bundle are checked against its manifest, unless `verify_files` is false. The weights are still being
    hashed when this returns: the first use of the model waits for that, and raises the error of a damaged file.
    `require_signature` is a file with the public key that must have signed the bundle.
    """
    text = [f"{path}={value}" for path, value in (settings or {}).items()]
    with pause_gc(), trusted(trust), file_policy(verify_files, require_signature):
        found = _begin_model(where, *text, options=ReadOptions(**options))
        messages = found.messages
        if found.check:
            check_on_first_use(found.loaded.model, found.check.wait)
        if verify:
            from vitral.weights.verify import verify_source  # which imports this module

            messages += (verify_source(found, required=True).describe(),)
    for line in messages:
        log.info(line)
    return found.loaded


def open_model(
    where: str | Path,
    *settings: str,
    options: ReadOptions = DEFAULT_OPTIONS,
    weight_map: WeightMap | None = None,
) -> OpenedModel:
    """Load a model without logging; the messages are returned. A map is for a layout that no format knows."""
    found = _begin_model(where, *settings, options=options, weight_map=weight_map)
    if found.check:
        found.check.wait()
    return found


def _begin_model(
    where: str | Path, *settings: str, options: ReadOptions, weight_map: WeightMap | None = None
) -> OpenedModel:
    """The same while the files of a bundle are still being hashed: whoever uses the model waits for `check`."""
    source = fetch_weights(str(where), options.offline)
    check_path(source.path)
    if (home := find_bundle(source.path)) is None:
        refuse_unsigned(source.path)
        return _open_checkpoint(source, settings, options, weight_map)
    if given := [*settings, *options.given(), *["map"] * (weight_map is not None)]:
        message = f"a bundle records all its settings, and takes no {given[0]}"
        raise ConfigError(message, code="config.conflict", where=home, hint="leave it out")
    bundle, tensors, check = begin_bundle(home)
    model = bundle.model.build_empty()
    with check.explaining():
        try:
            model.load_weights(tensors)
        except WeightsError as error:
            raise WeightsError(error.message, code=error.code, where=home / MODEL, hint=error.hint) from None
    model.activation = bundle.activation
    messages = [*check.messages(), *_stretch_message(model, bundle)]
    if bundle.task == "classify" and "activation" not in bundle.model_fields_set:
        messages.append(UNRECORDED_ACTIVATION)
    return OpenedModel(LoadedModel(model.eval(), bundle), home / MODEL, tuple(messages), check=check)


def find_bundle(path: Path) -> Path | None:
    """The bundle at a path: the folder itself, or the best or else the last bundle of a run."""
    homes = (path, path / "best", path / "last")
    return next((home for home in homes if is_bundle(home)), None)


def check_path(path: Path) -> None:
    """Reject a path without loadable weights, and say what to give instead."""
    run, code = path.parent.parent, "weights.wrong_path"
    if is_bundle(path):
        return
    if not path.exists():
        message, hint, code = f"no such file or folder; {EXPECTED}", "check the path", "weights.not_found"
    elif path.is_file() and is_bundle(path.parent):
        message, hint = "a file of a bundle", f"give the folder: {path.parent}"
    elif (path / "export.json").exists():
        message, hint = f"an export, which only vitral predict reads; {EXPECTED}", "give the model it was made from"
    elif path.is_file() and (path.parent / "export.json").exists():
        message, hint = "a file of an export", f"give the folder, to predict: {path.parent}"
    elif re.fullmatch(r"step-[0-9]+", path.name) and path.parent.name == "checkpoints":
        message = f"a training checkpoint, which only its run resumes from; {EXPECTED}"
        hint = f"give the run, {run}, or one of its bundles, {run / 'best'} and {run / 'last'}"
    elif all((path / name).exists() for name in RUN) and find_bundle(path) is None:
        message, code = "a run that has written no bundle yet", "weights.no_bundle"
        hint = f"resume it until its first evaluation: vitral train --resume {shlex.quote(str(path))}"
    else:
        return
    raise WeightsError(message, code=code, where=path, hint=hint)


def _open_checkpoint(
    source: FetchedWeights, settings: tuple[str, ...], options: ReadOptions, weight_map: WeightMap | None
) -> OpenedModel:
    """A model from a checkpoint of another library, with the outputs that library would give."""
    ckpt, wrapper = read_checkpoint(source.path, options)._replace(settings=settings), ""
    if weight_map is not None:
        format: Format = mapped_layout(weight_map, options.format)
        found, model = _read_model(ckpt, format)
    else:
        from vitral.weights.formats.registry import FORMATS, detect_format, strip_wrapper  # not needed for bundles
        from vitral.weights.formats.unknown import explain_fault

        ckpt, wrapper = strip_wrapper(ckpt)
        try:
            format = detect_format(ckpt, options.format)
            try:
                found, model = _read_model(ckpt, format)
            except WeightsError as error:
                raise _read_as(format, ckpt, error) from None
        except WeightsError as error:
            raise explain_fault(ckpt, FORMATS, error) from None
    config = model.config
    preprocessing = found.preprocessing  # DINOv2 is used with smaller images than its positions were trained for
    if config.image_size != found.model.image_size:
        preprocessing = preprocessing.model_copy(update={"image_size": config.image_size})
    try:
        bundle = Bundle(
            model=config,
            task="features" if isinstance(config.head, NoHead) else "classify",
            preprocessing=preprocessing,
            classes=found.classes,
            source=f"{found.title}, from {source.source or ckpt.path.name}",
            activation=found.activation,
            assumptions=found.assumptions,
        )
    except ConfigError as error:  # the config files beside the weights do not fit them
        raise _in_file(ckpt.path.parent, error, "weights.bad_config") from None
    model.activation = bundle.activation
    messages = [*ckpt.messages, *describe_checkpoint(found)]
    if wrapper:
        messages.append(f"removed the prefix {wrapper!r} of all tensor names, which a training script added")
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in found.tensors.values()} - {"float32"})
    if dtypes:
        messages.append(f"weights in {' and '.join(dtypes)}, read as float32")
    messages += _stretch_message(model, bundle)
    plain = ckpt.path.suffix in SAFE and not wrapper and not options.weights_key
    source_file = SourceCheckpoint(format, ckpt, found._replace(model=config), plain)
    return OpenedModel(LoadedModel(model.eval(), bundle), ckpt.path, tuple(messages), source_file)


def _read_as(format: Format, ckpt: Checkpoint, error: WeightsError) -> WeightsError:
    """The error for a bare file that does not record something, with the format that its tensors show."""
    if ckpt.config or error.code not in ("weights.missing_setting", "weights.bad_config"):
        return error
    message = f"{error.message}; its tensors are those of {format.title} ({format.name})"
    return WeightsError(message, code=error.code, where=error.where, hint=error.hint)


def _read_model(ckpt: Checkpoint, format: Format) -> tuple[DetectedModel, VisionTransformer]:
    """What a format detects, and the model with its settings applied and its weights."""
    settings = ckpt.settings
    if ckpt.arch and not format.takes_arch:
        message = f"{format.title} has no architectures by name, got {ckpt.arch!r}"
        raise ConfigError(message, code="config.unsupported", where="arch", hint="give settings instead, or nothing")
    check_settings(settings, SETTINGS, "while loading")
    try:
        found = format.detect(ckpt)
        config = override(found.model, settings)
    except ConfigError as error:
        raise _in_file(ckpt.path, error, "weights.bad_setting" if settings else "weights.bad_config") from None
    assert not isinstance(config, Resnet)
    model = config.build_empty()
    shape = f"{config.depth} layers of width {config.width}"
    hint = f"it was read as {found.title} with {shape}; {ANOTHER_MODEL}"
    if ckpt.setting("image_size"):
        hint += "; for images of another size, convert it with --image-size"
    own = model.state_dict()
    tensors = import_tensors((found.rules or format.rules)(config, own), own, found.tensors, str(ckpt.path), hint)
    try:
        model.load_weights({name: tensor.float() for name, tensor in tensors.items()})
    except WeightsError as error:
        message = describe_non_finite(found.tensors) or error.message
        raise WeightsError(message, code=error.code, where=ckpt.path, hint=error.hint) from None
    return found, model


def _stretch_message(model: Model, bundle: Bundle) -> list[str]:
    """A line where learned positions are resampled more than twofold for the images of the preprocessing."""
    learned = any(part.state_dict() for part in model.modules() if isinstance(part, GridDependent))
    sizes = bundle.model.image_size, bundle.preprocessing.image_size
    return stretch_message(*(bundle.model.layout(size).grid for size in sizes)) if learned else []


def stretch_message(old: Grid, new: Grid) -> list[str]:
    """A line where a table of positions is resampled more than twofold; else none."""
    factor = max(max(a, b) / min(a, b) for a, b in zip(old, new, strict=True))
    if factor <= MAX_STRETCH:
        return []
    return [f"positions for {old} patches are stretched to {new}, {factor:.1f} times: expect lower accuracy"]


def _in_file(path: Path, error: ConfigError, code: str) -> WeightsError:
    """A config error as one of a checkpoint file or folder."""
    where = ", ".join(filter(None, (str(path), error.where)))
    return WeightsError(error.message, code=code, where=where, hint=error.hint)


def describe_non_finite(tensors: Mapping[str, Tensor]) -> str:
    """The tensors with values that are not finite, by the names in the file."""
    faults = [
        f"{name} has {count} of {tensor.numel()} values not finite"
        for name, tensor in tensors.items()
        if (count := int((~tensor.isfinite()).sum()))
    ]
    return "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")


def check_settings(settings: Sequence[str], allowed: Sequence[str], purpose: str) -> None:
    """Reject settings that are not allowed for a purpose: `while loading`."""
    for name in (each.partition("=")[0] for each in settings):
        if name not in allowed:
            message, hint = f"cannot be set {purpose}", f"settings are {format_choices(allowed)}"
            raise ConfigError(message, code="config.unsupported", where=name, hint=hint)


def describe_checkpoint(found: DetectedModel) -> list[str]:
    """A line for the detected architecture, and one for each unused tensor group and each assumption."""
    lines = [f"detected {found.title}: {architecture(found.model).partition(': ')[2]}"]
    reasons: dict[str, list[str]] = {}
    for name, reason in found.unused.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"ignored {names[0]}{more}: {reason}")
    return lines + [f"assumed: {assumption}" for assumption in found.assumptions]


def hash_weights(path: Path) -> str:
    """The sha256 of a weight file; for an index, that of its files one after the other."""
    return hash_files(shard_files(path))
