"""Convert: weights of one library as those of another, with a certificate beside them.

A certificate: how far what was written is from what was read, by the code of those who will use it.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitral import __version__
from vitral.core.config import Config, Size
from vitral.core.errors import VitralError, WeightsError
from vitral.core.storage import STORAGE, new_folder
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.base import Model
from vitral.models.position import Learned1d, Learned2d
from vitral.models.vit import Vit
from vitral.weights.adapt import adapt
from vitral.weights.bundle import CARD, Bundle, is_bundle, write_bundle
from vitral.weights.card import CardFacts, render_card
from vitral.weights.formats.format import Format, ModelOutputs
from vitral.weights.formats.registry import library_formats
from vitral.weights.formats.rules import export_tensors
from vitral.weights.load import LoadedModel, LoadOptions, OpenedModel, hash_weights, open_model

FILE = "certificate.json"
IMAGES, SEED = 2, 0
TOLERANCE = 1e-4


class CertifiedFile(Config):
    """A file of weights."""

    software: str
    file: str
    sha256: str


class Difference(Config):
    """The largest difference of a number between two answers to the same images."""

    tokens: float
    logits: float | None  # null where there is no head

    def words(self) -> str:
        """Both numbers, for a person."""
        logits = "" if self.logits is None else f", logits by at most {self.logits:.1e}"
        return f"tokens differ by at most {self.tokens:.1e}{logits}"


def largest_difference(differences: Sequence[Difference]) -> Difference:
    return max(differences, key=lambda each: max(each.tokens, each.logits or 0.0))


class Certificate(Config):
    """What was compared, and how far apart it was."""

    vitral: str = __version__
    torch: str = torch.__version__
    images: str  # what was shown to both
    read: CertifiedFile
    changed: tuple[str, ...] = ()  # what was done to the weights after they were read, a sentence each
    written: CertifiedFile
    library: str  # whose code answered, and its version, or why none did
    theirs: Difference | None  # ours before against the target library's own code
    again: Difference  # ours before against ours, read back from what was written
    untold: tuple[str, ...]  # what the files have no place for, a sentence each

    def lines(self) -> list[str]:
        """The certificate in words."""
        theirs = f"{self.library}: {self.theirs.words()}" if self.theirs else f"their code: {self.library}"
        return [theirs, f"read back: {self.again.words()}", *self.untold]

    @property
    def worst(self) -> Difference:
        """The greater of the differences."""
        return largest_difference([each for each in (self.theirs, self.again) if each is not None])

    @property
    def holds(self) -> bool:
        """Whether both agree."""
        return max(self.worst.tokens, self.worst.logits or 0.0) <= TOLERANCE


class Reference(NamedTuple):
    """A library's own code on what was written, and its name and version; or why there is none."""

    library: str
    ask: Callable[[Tensor], ModelOutputs] | None


class Passage(NamedTuple):
    """From which file to which, and what was done to the weights on the way, a sentence each."""

    read: CertifiedFile
    changed: tuple[str, ...]
    written: CertifiedFile


def certify(before: LoadedModel, after: LoadedModel, peer: Reference, passage: Passage) -> Certificate:
    """Compare a model, as it was when it was written, with what was written of it.

    Ours are compared at the size that positions are kept for and at the one that images have, where that is another.
    """
    bundle = before.bundle
    sizes = list(dict.fromkeys((bundle.model.image_size, bundle.preprocessing.image_size)))
    images = [probe_images(bundle, size) for size in sizes]
    expected = [model_outputs(before.model, some) for some in images]
    again = [
        output_difference(own, model_outputs(after.model, some)) for own, some in zip(expected, images, strict=True)
    ]
    sorts = " and ".join(f"{IMAGES} of {size}" for size in sizes)
    return Certificate(
        images=f"{sorts}, uniform noise in [-1, 1] of torch's generator with seed {SEED}; libraries see the first",
        read=passage.read,
        changed=passage.changed,
        written=passage.written,
        library=peer.library,
        theirs=output_difference(expected[0], peer.ask(images[0])) if peer.ask else None,
        again=largest_difference(again),
        untold=tuple(missing_metadata(bundle, after.bundle)),
    )


def missing_metadata(before: Bundle, after: Bundle) -> Iterator[str]:
    """What whoever reads the files cannot know."""
    if before.classes != after.classes:
        yield f"not in the files: the names of the {len(before.classes):,} classes"
    if _seen(before) != _seen(after):
        needs, scaling = before.preprocessing, before.preprocessing.normalize
        mean, deviation = (", ".join(map("{:g}".format, each)) for each in (scaling.mean, scaling.std))
        seen = f"{needs.image_size}, {needs.crop.kind} view, mean {mean}, deviation {deviation}"
        yield f"not in the files: how images are seen ({seen})"
    own, theirs = (resampling_of(bundle) for bundle in (before, after))
    if own != theirs:
        yield f"not in the files: positions for images of other sizes are resampled as {own}; read back, as {theirs}"


def resampling_of(bundle: Bundle) -> str:
    """How learned positions are resampled; nothing where there are none to resample."""
    position = bundle.model.position if isinstance(bundle.model, Vit) else None
    return position.resampling if isinstance(position, Learned1d | Learned2d) else ""


def _seen(bundle: Bundle) -> Preprocessing:
    """How images are seen, in words that are the same for the same."""
    needs = bundle.preprocessing
    return needs.model_copy(update={"normalize": needs.normalize.per_channel(needs.decoding.channels)})


def probe_images(bundle: Bundle, size: Size) -> Tensor:
    """The images that are shown to both, always the same, (B, C, H, W)."""
    rng = torch.Generator().manual_seed(SEED)
    return torch.rand(IMAGES, bundle.model.channels, *size, generator=rng) * 2 - 1


@torch.no_grad()
def model_outputs(model: Model, images: Tensor) -> ModelOutputs:
    """Our answers."""
    tokens = torch.cat(model.forward_features(images)[:3], dim=1)
    return ModelOutputs(tokens, model(images) if model.config.head.kind != "none" else None)


def output_difference(one: ModelOutputs, other: ModelOutputs) -> Difference:
    """The largest differences between two answers."""
    logits = None
    if one.logits is not None and other.logits is not None:
        logits = float((one.logits - other.logits).abs().max())
    tokens = float((one.tokens - other.tokens).abs().max())
    if not isfinite(tokens) or not isfinite(logits or 0.0):
        message = "what was written gives answers that are infinite or not numbers"
        hint = "report this: the conversion is at fault; nothing was kept"
        raise WeightsError(message, code="weights.conversion_differs", hint=hint)
    return Difference(tokens=tokens, logits=logits)


def load_reference(kind: Format, folder: Path, bundle: Bundle) -> Reference:
    """The library's own code on a folder, or why it is not to be had; WeightsError where it refuses the folder."""
    assert isinstance(bundle.model, Vit)
    try:
        code, library = kind.code(bundle.model), f"{kind.package} {version(kind.package)}"
    except Exception as error:  # a library that is installed may still fail on import in many ways
        return Reference(f"none: {_said(error)}", None)
    try:
        return Reference(library, kind.reference(code, folder, bundle))
    except Exception as error:  # libraries have errors of their own
        message = f"what was written cannot be opened by {library}: {_said(error)}"
        hint = "report this: the conversion is at fault; nothing was kept"
        raise WeightsError(message, code="weights.conversion_unreadable", hint=hint) from error


def _said(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


log = logging.getLogger("vitral")
OURS, BUNDLE = "vitral", "a bundle of vitral"


class Conversion(NamedTuple):
    """What was made, and what was done to the weights on the way, a sentence each."""

    folder: Path
    certificate: Certificate
    told: tuple[str, ...]


class WrittenModel(NamedTuple):
    """What was written, read back."""

    software: str
    again: OpenedModel
    peer: Reference


class SourceFile(NamedTuple):
    """The file that a model was read from, and what was done to its weights since, a sentence each."""

    file: Path
    changed: tuple[str, ...] = ()


def write_model(source: LoadedModel, origin: SourceFile, out: Path, to: str) -> Certificate:
    """Write a model as a new folder in the form of a library."""
    if os.path.lexists(out):
        message, hint = "is there already, and is not overwritten", "choose another name"
        raise VitralError(message, code="file.exists", where=str(out), hint=hint)
    if to == OURS:
        fill = partial(_fill_bundle, origin=origin, name=out.name)
    else:
        fill = partial(_fill, kind=select_format(source, to))
    with new_folder(out) as draft:
        certificate = _certified(source, origin, fill(source, draft))
        STORAGE.write_file(draft / FILE, [memoryview(certificate.to_json().encode())])
    return certificate


def _fill_bundle(source: LoadedModel, draft: Path, origin: SourceFile, name: str) -> WrittenModel:
    """A bundle of ours."""
    bundle, home = source.bundle, origin.file.parent
    if origin.changed:
        told = "; ".join((bundle.source or f"the bundle {home.name}", *origin.changed))
        bundle = bundle.model_copy(update={"source": told})
    if not origin.changed and is_bundle(home) and (home / CARD).is_file():
        text = (home / CARD).read_text(encoding="utf-8")  # it is the same model, and all that was measured holds
    else:
        text = render_card(bundle, CardFacts(name, None, ()))
    write_bundle(draft, bundle, source.model.state_dict(), text)
    return WrittenModel(BUNDLE, open_model(draft), Reference("none: vitral itself reads a bundle", None))


def _fill(source: LoadedModel, draft: Path, kind: Format) -> WrittenModel:
    """The files of another library."""
    model = source.bundle.model
    assert isinstance(model, Vit)
    tensors = export_tensors(kind.rules(model), source.model.state_dict())
    for name, pieces in kind.files(source.bundle, tensors).items():
        STORAGE.write_file(draft / name, pieces)
    again = open_model(draft, f"image_size={model.image_size}", *kind.hints(model), reading=LoadOptions(kind.name))
    return WrittenModel(kind.name, again, load_reference(kind, draft, source.bundle))


def select_format(source: LoadedModel, library: str) -> Format:
    """The format of a library that can hold the model; WeightsError names the parts that have no counterpart."""
    faults = {kind: list(kind.without_counterpart(source.bundle)) for kind in library_formats(library)}
    for kind, found in faults.items():
        if not found:
            return kind
    kind, found = min(faults.items(), key=lambda each: len(each[1]))
    raise WeightsError(
        f"this model cannot be written as {kind.name}: {'; '.join(found)}",
        code="weights.no_counterpart",
        where=library,
        hint="convert it to another library, or keep it as a bundle: --to vitral",
    )


def _certified(source: LoadedModel, origin: SourceFile, made: WrittenModel) -> Certificate:
    """The certificate of what was written; WeightsError, and nothing is kept, where it does not agree."""
    bundle, where, (after, file, _) = source.bundle, origin.file, made.again
    read = CertifiedFile(software=bundle.source or BUNDLE, file=str(where), sha256=hash_weights(where))
    written_to = CertifiedFile(software=made.software, file=file.name, sha256=hash_weights(file))
    found = certify(source, after, made.peer, Passage(read, origin.changed, written_to))
    if found.holds:
        return found
    seen, ours, theirs = bundle.preprocessing.image_size, resampling_of(bundle), resampling_of(after.bundle)
    if seen != bundle.model.image_size and ours != theirs:
        message = (
            f"images of {seen} would be answered otherwise: positions kept for {bundle.model.image_size} are resampled"
        )
        raise WeightsError(
            f"{message} as {theirs} by {made.software}, as {ours} by this model",
            code="weights.resampling_differs",
            where=str(where),
            hint=f"write them as they are for those images: --image-size {seen}",
        )
    message = f"what was written answers otherwise: {found.worst.words()}"
    hint = "report this: the conversion is at fault; nothing was kept"
    raise WeightsError(message, code="weights.conversion_differs", where=str(where), hint=hint)


def convert(
    where: str,
    out: str,
    *settings: str,
    to: str = "vitral",
    layers: tuple[int, ...] = (),
    changes: tuple[str, ...] = (),
    format: str = "",
    allow_pickle: bool = False,
    offline: bool = False,
) -> Conversion:
    """Read weights, perhaps for other images or with some of the layers alone, and write them for a library.

    Settings tell what a file does not, as for `vitral.load`; changes are `image_size=384` and `channels=1`.
    """
    if to != OURS:
        library_formats(to)  # refuses a name that nobody has, before anything is read
    source, file, told = open_model(where, *settings, reading=LoadOptions(format, allow_pickle, offline))
    for line in told:
        log.info(line)
    done: tuple[str, ...] = ()
    if changes or layers:
        source, done = adapt(source, *changes, layers=layers)
    folder = Path(out).expanduser()
    return Conversion(folder, write_model(source, SourceFile(file, done), folder, to), done)
