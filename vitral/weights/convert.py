"""Convert: weights of one library as those of another, with a certificate beside them."""

import logging
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vitral.errors import VitralError, WeightsError
from vitral.model.vit import Vit
from vitral.weights.adapt import adapt
from vitral.weights.bundle import CARD, is_bundle, write_bundle
from vitral.weights.card import Facts, card
from vitral.weights.certificate import FILE, Certificate, Passage, Peer, Subject, certify, peer_of, resampling_of
from vitral.weights.drafts import new_folder
from vitral.weights.durable import Disk
from vitral.weights.formats.format import Format
from vitral.weights.formats.rule import written
from vitral.weights.load import Loaded, Opened, Reading, hash_of, opened_model
from vitral.weights.recognise import writers

log = logging.getLogger("vitral")
DISK = Disk()
OURS, BUNDLE = "vitral", "a bundle of vitral"


class Converted(NamedTuple):
    """What was made, and what was done to the weights on the way, a sentence each."""

    folder: Path
    certificate: Certificate
    told: tuple[str, ...]


class Written(NamedTuple):
    """What was written, read back."""

    what: str
    again: Opened
    peer: Peer


class Origin(NamedTuple):
    """The file that a model was read from, and what was done to its weights since, a sentence each."""

    file: Path
    changed: tuple[str, ...] = ()


def write_as(source: Loaded, origin: Origin, out: Path, to: str) -> Certificate:
    """Write a model as a new folder in the form of a library."""
    if os.path.lexists(out):
        what, remedy = "is there already, and is not overwritten", "choose another name"
        raise VitralError(what, code="file.exists", where=str(out), remedy=remedy)
    if to == OURS:
        fill = partial(_fill_bundle, origin=origin, name=out.name)
    else:
        fill = partial(_fill, kind=counterpart(source, to))
    with new_folder(out) as draft:
        certificate = _certified(source, origin, fill(source, draft))
        DISK.write(draft / FILE, [memoryview(certificate.to_json().encode())])
    return certificate


def _fill_bundle(source: Loaded, draft: Path, origin: Origin, name: str) -> Written:
    """A bundle of ours."""
    bundle, home = source.bundle, origin.file.parent
    if origin.changed:
        told = "; ".join((bundle.source or f"the bundle {home.name}", *origin.changed))
        bundle = bundle.model_copy(update={"source": told})
    if not origin.changed and is_bundle(home) and (home / CARD).is_file():
        text = (home / CARD).read_text(encoding="utf-8")  # it is the same model, and all that was measured holds
    else:
        text = card(bundle, Facts(name, None, ()))
    write_bundle(draft, bundle, source.model.state_dict(), text)
    return Written(BUNDLE, opened_model(draft), Peer("none: vitral itself reads a bundle", None))


def _fill(source: Loaded, draft: Path, kind: Format) -> Written:
    """The files of another library."""
    model = source.bundle.model
    assert isinstance(model, Vit)
    tensors = written(kind.rules(model), source.model.state_dict())
    for name, pieces in kind.files(source.bundle, tensors).items():
        DISK.write(draft / name, pieces)
    again = opened_model(draft, f"image={model.image}", *kind.hints(model), reading=Reading(kind.name))
    return Written(kind.name, again, peer_of(kind, draft, source.bundle))


def counterpart(source: Loaded, library: str) -> Format:
    """The format of a library that can hold the model; WeightsError names the parts that have no counterpart."""
    faults = {kind: list(kind.without_counterpart(source.bundle)) for kind in writers(library)}
    for kind, found in faults.items():
        if not found:
            return kind
    kind, found = min(faults.items(), key=lambda each: len(each[1]))
    raise WeightsError(
        f"this model cannot be written as {kind.name}: {'; '.join(found)}",
        code="weights.no_counterpart",
        where=library,
        remedy="convert it to another library, or keep it as a bundle: --to vitral",
    )


def _certified(source: Loaded, origin: Origin, made: Written) -> Certificate:
    """The certificate of what was written; WeightsError, and nothing is kept, where it does not agree."""
    bundle, where, (after, file, _) = source.bundle, origin.file, made.again
    read = Subject(what=bundle.source or BUNDLE, file=str(where), sha256=hash_of(where))
    written_to = Subject(what=made.what, file=file.name, sha256=hash_of(file))
    found = certify(source, after, made.peer, Passage(read, origin.changed, written_to))
    if found.holds:
        return found
    seen, ours, theirs = bundle.preprocessing.image, resampling_of(bundle), resampling_of(after.bundle)
    if seen != bundle.model.image and ours != theirs:
        what = f"images of {seen} would be answered otherwise: positions kept for {bundle.model.image} are resampled"
        raise WeightsError(
            f"{what} as {theirs} by {made.what}, as {ours} by this model",
            code="weights.resampling_differs",
            where=str(where),
            remedy=f"write them as they are for those images: --image {seen}",
        )
    what = f"what was written answers otherwise: {found.worst.words()}"
    remedy = "report this: the conversion is at fault; nothing was kept"
    raise WeightsError(what, code="weights.conversion_differs", where=str(where), remedy=remedy)


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
) -> Converted:
    """Read weights, perhaps for other images or with some of the layers alone, and write them for a library.

    Settings tell what a file does not, as for `vitral.load`; changes are `image=384` and `channels=1`.
    """
    if to != OURS:
        writers(to)  # refuses a name that nobody has, before anything is read
    source, file, told = opened_model(where, *settings, reading=Reading(format, allow_pickle, offline))
    for line in told:
        log.info(line)
    done: tuple[str, ...] = ()
    if changes or layers:
        source, done = adapt(source, *changes, layers=layers)
    folder = Path(out).expanduser()
    return Converted(folder, write_as(source, Origin(file, done), folder, to), done)
