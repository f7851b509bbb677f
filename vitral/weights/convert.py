"""Convert weights between libraries, with a certificate of how far the outputs differ.

What was written is read back by our code, and by the target library's own code where it is installed; a conversion
whose outputs differ by more than the tolerance is discarded.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from vitral import __version__
from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.storage import STORAGE, new_folder
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.base import Model
from vitral.models.position import Learned1d, Learned2d
from vitral.models.registry import SizeLike
from vitral.models.vit import Vit
from vitral.weights.adapt import adapt
from vitral.weights.bundle import CARD, Bundle, is_bundle, write_bundle
from vitral.weights.card import CardFacts, render_card
from vitral.weights.formats.format import Format, ModelOutputs
from vitral.weights.formats.registry import library_formats
from vitral.weights.formats.rules import export_tensors
from vitral.weights.load import LoadedModel, LoadOptions, OpenedModel, hash_weights, open_model
from vitral.weights.reader import ReadOptions

log = logging.getLogger("vitral")
CERTIFICATE_FILE = "certificate.json"
OURS, BUNDLE = "vitral", "a bundle of vitral"
NUM_IMAGES, SEED = 2, 0
TOLERANCE = 1e-4
REPORT_BUG = "report this as a bug; nothing was written"


class CertifiedFile(Config):
    """A file of weights."""

    software: str
    file: str
    sha256: str


class Difference(Config):
    """The largest absolute difference between two outputs for the same images."""

    tokens: float
    logits: float | None  # null without a head

    @property
    def largest(self) -> float:
        return max(self.tokens, self.logits or 0.0)

    def describe(self) -> str:
        """Both numbers as text."""
        logits = "" if self.logits is None else f", logits by at most {self.logits:.1e}"
        return f"tokens differ by at most {self.tokens:.1e}{logits}"


class Certificate(Config):
    """What was compared, and the differences."""

    vitral: str = __version__
    torch: str = torch.__version__
    images: str  # the input of both
    read: CertifiedFile
    changed: tuple[str, ...] = ()  # what was adapted between reading and writing
    written: CertifiedFile
    library: str  # the reference library and its version, or why there is none
    theirs: Difference | None  # our outputs before, against the target library's
    again: Difference  # our outputs before, against those of the written files read back
    untold: tuple[str, ...]  # what the files cannot record

    def lines(self) -> list[str]:
        """The certificate as text."""
        reason = self.library.removeprefix("none: ")
        theirs = (
            f"{self.library}: {self.theirs.describe()}" if self.theirs else f"not compared with a library: {reason}"
        )
        return [theirs, f"read back: {self.again.describe()}", *self.untold]

    @property
    def worst(self) -> Difference:
        """The larger of the two differences."""
        return max(filter(None, (self.theirs, self.again)), key=lambda each: each.largest)


class Reference(NamedTuple):
    """The target library's name and version and its outputs for images, or why it cannot be used."""

    library: str
    outputs: Callable[[Tensor], ModelOutputs] | None


class SourceFile(NamedTuple):
    """The file that a model was read from, and messages about what was adapted since."""

    file: Path
    changed: tuple[str, ...] = ()


class WrittenModel(NamedTuple):
    """What was written, read back."""

    software: str
    reloaded: OpenedModel
    reference: Reference


class Conversion(NamedTuple):
    """The new folder, its certificate, and messages about what was adapted."""

    folder: Path
    certificate: Certificate
    messages: tuple[str, ...]


def convert(
    where: str | Path,
    out: str | Path,
    *,
    to: str = "vitral",
    layers: Sequence[int] = (),
    image_size: SizeLike | None = None,
    channels: int | None = None,
    settings: Mapping[str, object] | None = None,
    **options: Unpack[LoadOptions],
) -> Conversion:
    """Read weights, optionally adapt them to other images or fewer layers, and write them for a library.

    Settings give what a checkpoint does not record, as for `vitral.load`.
    """
    if to != OURS:
        library_formats(to)  # rejects an unknown name before anything is read
    text = [f"{path}={value}" for path, value in (settings or {}).items()]
    source, file, messages = open_model(where, *text, options=ReadOptions(**options))
    for line in messages:
        log.info(line)
    done: tuple[str, ...] = ()
    if image_size is not None or channels is not None or layers:
        source, done = adapt(source, image_size=image_size, channels=channels, layers=layers)
    folder = Path(out).expanduser()
    return Conversion(folder, write_model(source, SourceFile(file, done), folder, to), done)


def write_model(source: LoadedModel, origin: SourceFile, out: Path, to: str) -> Certificate:
    """Write a model as a new folder in the format of a library."""
    if os.path.lexists(out):
        message, hint = "already exists and is not overwritten", "choose another name"
        raise ConfigError(message, code="config.path_exists", where=out, hint=hint)
    format = None if to == OURS else select_format(source, to)
    with new_folder(out) as draft:
        written = _write_files(source, draft, format) if format else _write_bundle(source, draft, origin, out.name)
        certificate = _check(source, origin, written)
        STORAGE.write_file(draft / CERTIFICATE_FILE, [memoryview(certificate.to_json().encode())])
    return certificate


def select_format(source: LoadedModel, library: str) -> Format:
    """The format of a library that holds most of the model; WeightsError names the parts that none can."""
    faults = {format: list(format.unsupported(source.bundle)) for format in library_formats(library)}
    model = source.bundle.model
    differs = {format: isinstance(model, Vit) and not format.resamples_as(model) for format in faults}
    format, fewest = min(faults.items(), key=lambda each: (len(each[1]), differs[each[0]]))
    if not fewest:
        return format
    raise WeightsError(
        f"this model cannot be written as {format.name}: {'; '.join(fewest)}",
        code="weights.no_counterpart",
        where=library,
        hint="convert it to another library, or to a bundle: --to vitral",
    )


def _write_bundle(source: LoadedModel, draft: Path, origin: SourceFile, name: str) -> WrittenModel:
    bundle, home = source.bundle, origin.file.parent
    if origin.changed:
        history = "; ".join((bundle.source or f"the bundle {home.name}", *origin.changed))
        bundle = bundle.model_copy(update={"source": history})
    if not origin.changed and is_bundle(home) and (home / CARD).is_file():
        text = (home / CARD).read_text(encoding="utf-8")  # the same model: its measured results hold
    else:
        text = render_card(bundle, CardFacts(name, None, ()))
    write_bundle(draft, bundle, source.model.state_dict(), text)
    return WrittenModel(BUNDLE, open_model(draft), Reference("none: vitral itself reads a bundle", None))


def _write_files(source: LoadedModel, draft: Path, format: Format) -> WrittenModel:
    model = source.bundle.model
    assert isinstance(model, Vit)
    own = source.model.state_dict()
    tensors = export_tensors(format.rules(model, own), own)
    for name, chunks in format.files(source.bundle, tensors).items():
        STORAGE.write_file(draft / name, chunks)
    settings = (f"image_size={model.image_size}", *format.required_settings(model))
    reloaded = open_model(draft, *settings, options=ReadOptions(format=format.name))
    return WrittenModel(format.name, reloaded, load_reference(format, draft, source.bundle))


def load_reference(format: Format, folder: Path, bundle: Bundle) -> Reference:
    """The library's own model of a folder, or why it cannot be used; WeightsError where it rejects the folder."""
    assert isinstance(bundle.model, Vit)
    try:
        code, library = format.import_library(bundle.model), f"{format.package} {version(format.package)}"
    except Exception as error:  # an installed library may still fail on import in many ways
        return Reference(f"none: {_first_line(error)}", None)
    try:
        return Reference(library, format.load_reference(code, folder, bundle))
    except Exception as error:  # each library has its own errors
        message = f"{library} cannot load what was written: {_first_line(error)}"
        raise WeightsError(message, code="weights.conversion_unreadable", hint=REPORT_BUG) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _check(source: LoadedModel, origin: SourceFile, written: WrittenModel) -> Certificate:
    """The certificate of what was written; WeightsError where the outputs differ."""
    bundle, where, (reloaded, file, _) = source.bundle, origin.file, written.reloaded
    read = CertifiedFile(software=bundle.source or BUNDLE, file=str(where), sha256=hash_weights(where))
    target = CertifiedFile(software=written.software, file=file.name, sha256=hash_weights(file))
    compared = _compare(source, reloaded, written.reference)
    certificate = Certificate(read=read, changed=origin.changed, written=target, **compared)
    if certificate.worst.largest <= TOLERANCE:
        return certificate
    size, ours, theirs = bundle.preprocessing.image_size, resampling_of(bundle), resampling_of(reloaded.bundle)
    if size != bundle.model.image_size and ours != theirs:
        raise WeightsError(
            f"the outputs for {size} images would differ: {written.software} resamples the positions for "
            f"{bundle.model.image_size} as {theirs}, this model as {ours}",
            code="weights.resampling_differs",
            where=where,
            hint=f"write the positions for that size: --image-size {size}",
        )
    message = f"the outputs of what was written differ: {certificate.worst.describe()}"
    raise WeightsError(message, code="weights.conversion_differs", where=where, hint=REPORT_BUG)


def _compare(before: LoadedModel, after: LoadedModel, reference: Reference) -> dict[str, Any]:
    """The differences at the size of the position table and, where it is another, at that of the preprocessing."""
    bundle = before.bundle
    sizes = list(dict.fromkeys((bundle.model.image_size, bundle.preprocessing.image_size)))
    images = [probe_images(bundle, size) for size in sizes]
    expected = [model_outputs(before.model, batch) for batch in images]
    again = [output_difference(own, model_outputs(after.model, x)) for own, x in zip(expected, images, strict=True)]
    shapes = " and ".join(f"{NUM_IMAGES} of {size}" for size in sizes)
    return {
        "images": f"{shapes}, uniform noise in [-1, 1] of torch's generator with seed {SEED}; libraries see the first",
        "library": reference.library,
        "theirs": output_difference(expected[0], reference.outputs(images[0])) if reference.outputs else None,
        "again": max(again, key=lambda each: each.largest),
        "untold": tuple(missing_metadata(bundle, after.bundle)),
    }


def missing_metadata(before: Bundle, after: Bundle) -> Iterator[str]:
    """What the files cannot record, a sentence each."""
    if before.classes != after.classes:
        yield f"not in the files: the names of the {len(before.classes):,} classes"
    if _comparable(before.preprocessing) != _comparable(after.preprocessing):
        preprocessing, normalize = before.preprocessing, before.preprocessing.normalize
        mean, std = (", ".join(map("{:g}".format, each)) for each in (normalize.mean, normalize.std))
        fields = f"{preprocessing.image_size}, crop {preprocessing.crop.kind}, mean {mean}, std {std}"
        yield f"not in the files: the preprocessing ({fields})"
    own, theirs = (resampling_of(bundle) for bundle in (before, after))
    if own != theirs:
        yield f"not in the files: positions for images of other sizes are resampled as {own}; read back, as {theirs}"


def resampling_of(bundle: Bundle) -> str:
    """How learned positions are resampled; empty where there are none."""
    position = bundle.model.position if isinstance(bundle.model, Vit) else None
    return position.resampling if isinstance(position, Learned1d | Learned2d) else ""


def _comparable(preprocessing: Preprocessing) -> Preprocessing:
    """The preprocessing with one mean per channel, so that equal ones compare equal."""
    normalize = preprocessing.normalize.per_channel(preprocessing.decoding.channels)
    return preprocessing.model_copy(update={"normalize": normalize})


def probe_images(bundle: Bundle, size: Size) -> Tensor:
    """The images that all outputs are compared on, always the same, (B, C, H, W)."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.rand(NUM_IMAGES, bundle.model.channels, *size, generator=generator) * 2 - 1


@torch.no_grad()
def model_outputs(model: Model, images: Tensor) -> ModelOutputs:
    """Our outputs."""
    tokens = torch.cat(model.forward_features(images)[:3], dim=1)
    return ModelOutputs(tokens, model(images) if model.config.head.kind != "none" else None)


def output_difference(one: ModelOutputs, other: ModelOutputs) -> Difference:
    """The largest differences between two outputs."""
    logits = None
    if one.logits is not None and other.logits is not None:
        logits = float((one.logits - other.logits).abs().max())
    tokens = float((one.tokens - other.tokens).abs().max())
    if not isfinite(tokens) or not isfinite(logits or 0.0):
        message = "the outputs of what was written are infinite or NaN"
        raise WeightsError(message, code="weights.conversion_differs", hint=REPORT_BUG)
    return Difference(tokens=tokens, logits=logits)
