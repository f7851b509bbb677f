"""Convert weights between libraries, with a certificate of how far the outputs differ.

The library that wrote the file runs on it, what was written is read back by our code, and by the target library's own
code; each library in a separate process, where it is installed. A conversion whose outputs differ by more than the
tolerance is discarded.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from vitral.core.config import Size
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.files import read_file
from vitral.core.manifest import CARD, add_to_manifest, own_files
from vitral.core.storage import STORAGE, new_folder
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.position import Learned1d, Learned2d
from vitral.models.registry import SizeLike
from vitral.models.vit import Vit
from vitral.weights.adapt import adapt, config_changes
from vitral.weights.bundle import Bundle, is_bundle, write_bundle
from vitral.weights.card import CardFacts, render_card
from vitral.weights.certificate import (
    CERTIFICATE_FILE,
    NOT_RUN,
    TOLERANCE,
    Certificate,
    CertifiedFile,
    Difference,
    TensorChange,
    added_tensor,
    combined_tensors,
    output_difference,
    tensor_changes,
)
from vitral.weights.formats.counterpart import fitted_tensors
from vitral.weights.formats.format import Format
from vitral.weights.formats.mapping import MappedLayout, WeightMap, read_map
from vitral.weights.formats.registry import library_formats
from vitral.weights.formats.rules import export_tensors, written_tensors
from vitral.weights.load import LoadedModel, LoadOptions, OpenedModel, hash_weights, open_model
from vitral.weights.reader import ReadOptions
from vitral.weights.verify import (
    NUM_IMAGES,
    SEED,
    LibraryCheck,
    check_library,
    model_outputs,
    probe_images,
    probe_sizes,
    run_library,
    verify_source,
)

log = logging.getLogger("vitral")
OURS, BUNDLE = "vitral", "a bundle of vitral"
ROUNDED = {"even": "to the even number", "down": "down"}
SIZES = [Size(31 + 13 * number % 97, 29 + 31 * number % 101) for number in range(40)]  # that crops are compared on
REPORT_BUG = "report this as a bug; nothing was written"
NO_CHECK = LibraryCheck(f"{NOT_RUN}the model was made here", None)


class Origin(NamedTuple):
    """The file that a model was read from, how it compares with its library, and what changed since."""

    file: Path
    check: LibraryCheck = NO_CHECK
    changed: tuple[str, ...] = ()  # what was adapted, a sentence each
    tensors: tuple[TensorChange, ...] = ()  # that are not what the file has
    dropped: tuple[str, ...] = ()  # tensors of the file that the model does not use
    rules: str = ""  # of the user, for a layout that no format knows


class FittedModel(NamedTuple):
    """The nearest model that a format holds, usually the model itself, and in what it differs."""

    loaded: LoadedModel
    changed: tuple[str, ...] = ()  # settings, a sentence each
    tensors: tuple[TensorChange, ...] = ()  # that were added, or got a row


class WrittenModel(NamedTuple):
    """What was written, read back, and the target library's answers beside those of the model before it was fitted."""

    software: str
    fitted: FittedModel
    reloaded: OpenedModel
    check: LibraryCheck  # of what was written
    before: LibraryCheck  # of the model


class Conversion(NamedTuple):
    """The new folder, its certificate, and messages about what was adapted."""

    folder: Path
    certificate: Certificate
    messages: tuple[str, ...]

    def lines(self) -> list[str]:
        """What `vitral convert` prints."""
        return [*self.messages, *self.certificate.lines()]

    def __repr__(self) -> str:
        return "\n".join([f"Conversion({str(self.folder)!r})", *self.lines()])


class Adaptation(TypedDict, total=False):
    """What `convert` may change on the way, as `vitral.adapt` does."""

    layers: Sequence[int]
    image_size: SizeLike | None
    channels: int | None
    patch: SizeLike | None


class ConvertOptions(LoadOptions, Adaptation, total=False):
    """Keywords of `vitral.convert`: how the file is read, and what is adapted."""

    map: WeightMap | str | Path | None  # rules for a layout that no format knows, or their YAML or JSON file


def convert(
    where: str | Path,
    out: str | Path,
    *,
    to: str = "vitral",
    settings: Mapping[str, object] | None = None,
    verify: bool = False,
    trust: bool = False,
    **options: Unpack[ConvertOptions],
) -> Conversion:
    """Read weights, optionally adapt them to other images or fewer layers, and write them for a library.

    Settings give what a checkpoint does not record, as for `vitral.load`. The library of the file runs on it where it
    is installed; with `verify` the conversion is refused where it cannot be. `map` gives the model and the names of
    the tensors of a layout that no format knows. `trust` allows a model with classes of your own to import them.
    """
    if to != OURS:
        library_formats(to)  # rejects an unknown name before anything is read
    text = [f"{path}={value}" for path, value in (settings or {}).items()]
    reading: dict[str, Any] = {name: value for name, value in options.items() if name in ReadOptions.model_fields}
    adapting: dict[str, Any] = {
        name: value
        for name, value in options.items()
        if name not in reading and name != "map" and value not in (None, (), [])
    }
    rules = options.get("map")
    with trusted(trust):
        weight_map = read_map(rules) if isinstance(rules, str | Path) else rules
        opened = open_model(where, *text, options=ReadOptions(**reading), weight_map=weight_map)
        for line in opened.messages:
            log.info(line)
        origin = describe_origin(opened, verify)
        source = opened.loaded
        if adapting:
            source, done = adapt(source, **adapting)
            origin = origin._replace(changed=done)
        folder = Path(out).expanduser()
        return Conversion(folder, write_model(source, origin, folder, to), origin.changed)


def describe_origin(opened: OpenedModel, verify: bool) -> Origin:
    """How a model that was read compares with its file: outputs of its library, and every tensor."""
    check = verify_source(opened, required=verify)
    if opened.source is None:
        return Origin(opened.file, check)
    own = opened.loaded.model.state_dict()
    found = opened.source.found
    given = {name: tensor for name, tensor in opened.source.ckpt.tensors.items() if name not in found.unused}
    combined = combined_tensors(given, found.tensors)
    changes = tensor_changes(found.tensors, written_tensors(opened.source.rules(), own))
    rules = opened.source.format.map.record() if isinstance(opened.source.format, MappedLayout) else ""
    return Origin(opened.file, check, (), (*combined, *changes), tuple(found.unused), rules)


def write_model(source: LoadedModel, origin: Origin, out: Path, to: str) -> Certificate:
    """Write a model as a new folder in the format of a library."""
    if os.path.lexists(out):
        message, hint = "already exists and is not overwritten", "choose another name"
        raise ConfigError(message, code="config.path_exists", where=out, hint=hint)
    format = None if to == OURS else select_format(source, to)
    with new_folder(out) as draft:
        written = _write_files(source, draft, format) if format else _write_bundle(source, draft, origin, out.name)
        certificate = _check(source, origin, written)
        digest = STORAGE.write_file(draft / CERTIFICATE_FILE, [memoryview(certificate.to_json().encode())])
        if format is None:
            add_to_manifest(draft, {CERTIFICATE_FILE: digest})
    return certificate


def select_format(source: LoadedModel, library: str) -> Format:
    """The format of a library that holds the model best; WeightsError names the parts or the tensor that none can."""
    model, faults, differs = source.bundle.model, dict[Format, list[str]](), dict[Format, tuple[int, bool]]()
    for format in library_formats(library):
        nearest = format.nearest(model) if isinstance(model, Vit) else model
        faults[format] = list(format.unsupported(source.bundle.model_copy(update={"model": nearest})))
        if (temperature := getattr(model.head, "temperature", 1.0)) != 1:
            faults[format].append(f"head.temperature: {format.title} needs 1, this model has {temperature:g}")
        differs[format] = len(config_changes(model, nearest)), isinstance(model, Vit) and not format.resamples_as(model)
    best = sorted(faults, key=lambda each: (len(faults[each]), *differs[each]))
    held = [format for format in best if not faults[format]]
    if len(held) > 1:  # one may hold the settings, and need a tensor to be zero that is not
        return next((format for format in held if holds_tensors(source, format)), held[0])
    if held:
        return held[0]
    raise WeightsError(
        f"this model cannot be written as {best[0].name}: {'; '.join(faults[best[0]])}",
        code="weights.no_counterpart",
        where=library,
        hint="convert it to another library, or to a bundle: --to vitral",
    )


def holds_tensors(source: LoadedModel, format: Format) -> bool:
    """Whether a format that holds a model's settings holds its tensors too."""
    model, own = source.bundle.model, source.model.state_dict()
    assert isinstance(model, Vit)
    nearest = format.nearest(model)
    tensors = own if nearest == model else fitted_tensors(own, model, nearest)
    try:
        for _ in written_tensors(format.rules(nearest, tensors), tensors):
            pass
    except WeightsError as error:
        if error.code != "weights.no_counterpart":
            raise
        return False
    return True


def _write_bundle(source: LoadedModel, draft: Path, origin: Origin, name: str) -> WrittenModel:
    bundle, home = source.bundle, origin.file.parent
    if origin.changed:
        history = "; ".join((bundle.source or f"the bundle {home.name}", *origin.changed))
        bundle = bundle.model_copy(update={"source": history})
    if not origin.changed and is_bundle(home) and (home / CARD).is_file():
        text = read_file(home / CARD).decode()  # the same model: its measured results hold
    else:
        text = render_card(bundle, CardFacts(name, None, ()))
    write_bundle(draft, bundle, source.model.state_dict(), text)
    with own_files():
        reloaded = open_model(draft)
    none = LibraryCheck(f"{NOT_RUN}vitral itself reads a bundle", None)
    return WrittenModel(BUNDLE, FittedModel(source), reloaded, none, none)


def fit_format(source: LoadedModel, format: Format) -> FittedModel:
    """The nearest model that a format holds, with the difference that its settings make to the outputs."""
    model, bundle = source.bundle.model, source.bundle
    assert isinstance(model, Vit)
    if (nearest := format.nearest(model)) == model:
        return FittedModel(source)
    own, fitted = source.model.state_dict(), nearest.build_empty()
    tensors = fitted_tensors(own, model, nearest)
    fitted.load_weights(tensors)
    loaded = LoadedModel(fitted.eval(), bundle.model_copy(update={"model": nearest}))
    effect = largest_difference(source, loaded).describe()
    settings = ", ".join(config_changes(model, nearest))
    new = [added_tensor(name, tensor) for name, tensor in tensors.items() if name not in own]
    changes = (*tensor_changes(own, iter(tensors.items())), *new)
    return FittedModel(loaded, (f"{settings}, as {format.title} has it: {effect}",), changes)


def _write_files(source: LoadedModel, draft: Path, format: Format) -> WrittenModel:
    fitted = fit_format(source, format)
    model, own = fitted.loaded.bundle.model, fitted.loaded.model.state_dict()
    assert isinstance(model, Vit)
    tensors = export_tensors(format.rules(model, own), own)
    for name, chunks in format.files(fitted.loaded.bundle, tensors).items():
        STORAGE.write_file(draft / name, chunks)
    settings = (f"image_size={model.image_size}", *format.required_settings(model))
    with own_files():
        reloaded = open_model(draft, *settings, options=ReadOptions(format=format.name))
    return WrittenModel(format.name, fitted, reloaded, *_check_target(source, fitted.loaded, reloaded))


def _check_target(source: LoadedModel, fitted: LoadedModel, reloaded: OpenedModel) -> tuple[LibraryCheck, LibraryCheck]:
    """The outputs of the target library for what was written, against the model as fitted and as before."""
    assert reloaded.source is not None
    batches = [probe_images(source.bundle, size) for size in probe_sizes(source.bundle)[:1]]
    answer = run_library(reloaded.source, reloaded.loaded.bundle, batches)
    if answer.library and answer.own and not answer.opened:
        message = f"the target library cannot load what was written: {answer.reason}"
        raise WeightsError(message, code="weights.conversion_unreadable", hint=REPORT_BUG)
    found = check_library(fitted, answer, batches)
    return found, found if fitted is source else check_library(source, answer, batches)


def largest_difference(one: LoadedModel, other: LoadedModel) -> Difference:
    """Of the outputs of two models for the images that outputs are compared on."""
    batches = [probe_images(one.bundle, size) for size in probe_sizes(one.bundle)]
    pairs = ((model_outputs(one.model, images), model_outputs(other.model, images)) for images in batches)
    return max((output_difference(*pair) for pair in pairs), key=lambda each: each.largest)


def _check(source: LoadedModel, origin: Origin, written: WrittenModel) -> Certificate:
    """The certificate of what was written; WeightsError where the outputs differ."""
    bundle, where, reloaded = source.bundle, origin.file, written.reloaded.loaded
    file, fitted = written.reloaded.file, written.fitted
    again = largest_difference(fitted.loaded, reloaded)
    changes = config_changes(fitted.loaded.bundle.model, reloaded.bundle.model)
    worst = max(filter(None, (written.check.difference, again)), key=lambda each: each.largest)
    _refuse_differences(worst, where, (bundle, written), changes)
    tensors = (
        *origin.tensors,
        *fitted.tensors,
        *tensor_changes(fitted.loaded.model.state_dict(), iter(reloaded.model.state_dict().items())),
    )
    shapes = " and ".join(f"{NUM_IMAGES} of {size}" for size in probe_sizes(bundle))
    return Certificate(
        images=f"{shapes}, uniform noise in [-1, 1] of torch's generator with seed {SEED}; the target sees the first",
        read=CertifiedFile(software=bundle.source or BUNDLE, file=where.name, sha256=hash_weights(where)),
        source_library=origin.check.library,
        source=origin.check.difference,
        changed=(*origin.changed, *fitted.changed, *changes, *(change.describe() for change in tensors)),
        tensors=tensors,
        dropped=origin.dropped,
        rules=origin.rules,
        written=CertifiedFile(software=written.software, file=file.name, sha256=hash_weights(file)),
        library=written.before.library,
        theirs=written.before.difference,
        again=again if fitted.loaded is source else largest_difference(source, reloaded),
        untold=tuple(missing_metadata(bundle, reloaded.bundle)),
    )


def _refuse_differences(
    worst: Difference, where: Path, pair: tuple[Bundle, WrittenModel], changes: Sequence[str]
) -> None:
    """Raise WeightsError, with the cause, where the outputs of what was written are not those of the model."""
    if worst.largest <= TOLERANCE:
        return
    before, software, after = pair[0], pair[1].software, pair[1].reloaded.loaded.bundle
    size, ours, theirs = before.preprocessing.image_size, resampling_of(before), resampling_of(after)
    if size != before.model.image_size and ours != theirs:
        raise WeightsError(
            f"the outputs for {size} images would differ: {software} resamples the positions for "
            f"{before.model.image_size} as {theirs}, this model as {ours}",
            code="weights.resampling_differs",
            where=where,
            hint=f"write the positions for that size: --image-size {size}",
        )
    if changes:
        raise WeightsError(
            f"{software} cannot hold {'; '.join(changes)}, and then {worst.describe()}",
            code="weights.no_counterpart",
            where=where,
            hint="convert it to another library, or to a bundle: --to vitral",
        )
    message = f"the outputs of what was written differ: {worst.describe()}"
    raise WeightsError(message, code="weights.conversion_differs", where=where, hint=REPORT_BUG)


def missing_metadata(before: Bundle, after: Bundle) -> Iterator[str]:
    """What the files cannot record, a sentence each."""
    if before.classes != after.classes:
        yield f"not in the files: the names of the {len(before.classes):,} classes"
    if before.task == "classify" and before.activation != after.activation:
        yield f"not in the files: {before.activation} of the logits; read back, {after.activation}"
    if lost := missing_preprocessing(_comparable(before.preprocessing), _comparable(after.preprocessing)):
        yield f"not in the files: {lost}"
    scales = [bundle.preprocessing.decoding.jpeg_scale for bundle in (before, after)]
    if scales[0] == "smallest" != scales[1]:  # of older runs; others give nearly the pixels of whole photos
        yield "not in the files: large photos are decoded at the smallest scale that the crop needs; read back, whole"
    for lost in config_changes(before.model, after.model, training=True):
        yield f"not in the files: {lost}"
    own, theirs = (resampling_of(bundle) for bundle in (before, after))
    if own != theirs:
        yield f"not in the files: positions for images of other sizes are resampled as {own}; read back, as {theirs}"


def missing_preprocessing(before: Preprocessing, after: Preprocessing) -> str:
    """In what the pixels differ, if they do; a center crop may be a pixel off, for some sizes of images."""
    plans = [(before.crop.plan(size, before.image_size), after.crop.plan(size, after.image_size)) for size in SIZES]
    off = sum(one != other for one, other in plans)
    one, other = before.crop, after.crop
    if before.model_copy(update={"crop": other}) == after and not off:
        return ""
    if isinstance(one, CenterCrop) and isinstance(other, CenterCrop):
        rounded = one.model_copy(update={"rounding": other.rounding})
        if before.model_copy(update={"crop": rounded}) == after:
            how = f"half of an odd margin of the center crop is rounded {ROUNDED[one.rounding]}"
            return f"{how}; read back, {ROUNDED[other.rounding]}: a pixel off for {off} of {len(SIZES)} image sizes"
    mean, std = (", ".join(map("{:g}".format, each)) for each in (before.normalize.mean, before.normalize.std))
    return f"the preprocessing ({before.image_size}, crop {one.kind}, mean {mean}, std {std})"


def resampling_of(bundle: Bundle) -> str:
    """How learned positions are resampled; empty where there are none."""
    position = bundle.model.position if isinstance(bundle.model, Vit) else None
    return position.resampling if isinstance(position, Learned1d | Learned2d) else ""


def _comparable(preprocessing: Preprocessing) -> Preprocessing:
    """The preprocessing with one mean per channel and whole photos, so that equal ones compare equal.

    No file of another library says at which scale photos are decoded, and none has to: its own code decodes them whole.
    """
    normalize = preprocessing.normalize.per_channel(preprocessing.decoding.channels)
    decoding = preprocessing.decoding.model_copy(update={"jpeg_scale": "full"})
    return preprocessing.model_copy(update={"normalize": normalize, "decoding": decoding})
