"""A certificate: how far what was written is from what was read, by the code of those who will use it."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitral import __version__
from vitral.config import Config, Size
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.errors import WeightsError
from vitral.model.contract import Model
from vitral.model.position import Learned1d, Learned2d
from vitral.model.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Answers, Format
from vitral.weights.load import Loaded

FILE = "certificate.json"
IMAGES, SEED = 2, 0
TOLERANCE = 1e-4


class Subject(Config):
    """A file of weights."""

    what: str
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


def greatest(differences: Sequence[Difference]) -> Difference:
    return max(differences, key=lambda each: max(each.tokens, each.logits or 0.0))


class Certificate(Config):
    """What was compared, and how far apart it was."""

    vitral: str = __version__
    torch: str = torch.__version__
    images: str  # what was shown to both
    read: Subject
    changed: tuple[str, ...] = ()  # what was done to the weights after they were read, a sentence each
    written: Subject
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
        return greatest([each for each in (self.theirs, self.again) if each is not None])

    @property
    def holds(self) -> bool:
        """Whether both agree."""
        return max(self.worst.tokens, self.worst.logits or 0.0) <= TOLERANCE


class Peer(NamedTuple):
    """A library's own code on what was written, and its name and version; or why there is none."""

    library: str
    ask: Callable[[Tensor], Answers] | None


class Passage(NamedTuple):
    """From which file to which, and what was done to the weights on the way, a sentence each."""

    read: Subject
    changed: tuple[str, ...]
    written: Subject


def certify(before: Loaded, after: Loaded, peer: Peer, passage: Passage) -> Certificate:
    """Compare a model, as it was when it was written, with what was written of it.

    Ours are compared at the size that positions are kept for and at the one that images have, where that is another.
    """
    bundle = before.bundle
    sizes = list(dict.fromkeys((bundle.model.image, bundle.preprocessing.image)))
    images = [shown(bundle, size) for size in sizes]
    expected = [answers_of(before.model, some) for some in images]
    again = [difference(own, answers_of(after.model, some)) for own, some in zip(expected, images, strict=True)]
    sorts = " and ".join(f"{IMAGES} of {size}" for size in sizes)
    return Certificate(
        images=f"{sorts}, uniform noise in [-1, 1] of torch's generator with seed {SEED}; libraries see the first",
        read=passage.read,
        changed=passage.changed,
        written=passage.written,
        library=peer.library,
        theirs=difference(expected[0], peer.ask(images[0])) if peer.ask else None,
        again=greatest(again),
        untold=tuple(untold(bundle, after.bundle)),
    )


def untold(before: Bundle, after: Bundle) -> Iterator[str]:
    """What whoever reads the files cannot know."""
    if before.classes != after.classes:
        yield f"not in the files: the names of the {len(before.classes):,} classes"
    if _seen(before) != _seen(after):
        needs, scaling = before.preprocessing, before.preprocessing.scaling
        mean, deviation = (", ".join(map("{:g}".format, each)) for each in (scaling.mean, scaling.deviation))
        seen = f"{needs.image}, {needs.view.kind} view, mean {mean}, deviation {deviation}"
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
    return needs.model_copy(update={"scaling": needs.scaling.over(needs.decoding.channels)})


def shown(bundle: Bundle, size: Size) -> Tensor:
    """The images that are shown to both, always the same, (B, C, H, W)."""
    dice = torch.Generator().manual_seed(SEED)
    return torch.rand(IMAGES, bundle.model.channels, *size, generator=dice) * 2 - 1


@torch.no_grad()
def answers_of(model: Model, images: Tensor) -> Answers:
    """Our answers."""
    tokens = torch.cat(model.features(images)[:3], dim=1)
    return Answers(tokens, model(images) if model.config.head.kind != "none" else None)


def difference(one: Answers, other: Answers) -> Difference:
    """The largest differences between two answers."""
    logits = None
    if one.logits is not None and other.logits is not None:
        logits = float((one.logits - other.logits).abs().max())
    tokens = float((one.tokens - other.tokens).abs().max())
    if not isfinite(tokens) or not isfinite(logits or 0.0):
        what = "what was written gives answers that are infinite or not numbers"
        remedy = "report this: the conversion is at fault; nothing was kept"
        raise WeightsError(what, code="weights.conversion_differs", remedy=remedy)
    return Difference(tokens=tokens, logits=logits)


def peer_of(kind: Format, folder: Path, bundle: Bundle) -> Peer:
    """The library's own code on a folder, or why it is not to be had; WeightsError where it refuses the folder."""
    assert isinstance(bundle.model, Vit)
    try:
        code, library = kind.code(bundle.model), f"{kind.package} {version(kind.package)}"
    except Exception as error:  # a library that is installed may still fail on import in many ways
        return Peer(f"none: {_said(error)}", None)
    try:
        return Peer(library, kind.reference(code, folder, bundle))
    except Exception as error:  # libraries have errors of their own
        what = f"what was written cannot be opened by {library}: {_said(error)}"
        remedy = "report this: the conversion is at fault; nothing was kept"
        raise WeightsError(what, code="weights.conversion_unreadable", remedy=remedy) from error


def _said(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
