"""Convert: weights of one library as those of another, with a certificate beside them."""

import logging
import os
from pathlib import Path
from typing import NamedTuple

from vitral.errors import VitralError, WeightsError
from vitral.model.vit import Vit
from vitral.weights.adapt import adapt
from vitral.weights.bundle import write_bundle
from vitral.weights.card import Facts, card
from vitral.weights.certificate import FILE, Certificate, Subject, certify
from vitral.weights.drafts import new_folder
from vitral.weights.durable import Disk
from vitral.weights.formats.format import Format
from vitral.weights.formats.rule import written
from vitral.weights.load import Loaded, Reading, hash_of, opened_model
from vitral.weights.recognise import writers

log = logging.getLogger("vitral")
DISK = Disk()


class Converted(NamedTuple):
    """What was made, and what was done to the weights on the way, a sentence each."""

    folder: Path
    certificate: Certificate | None  # a bundle of ours needs none: it holds the very tensors
    told: tuple[str, ...]


def write_as(source: Loaded, where: Path, out: Path, to: str) -> Certificate | None:
    """Write a model, which was read from `where`, as a new folder in the form of a library."""
    if os.path.lexists(out):
        raise VitralError("is there already, and is not overwritten", where=str(out), remedy="choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    if to == "vitral":
        text = card(source.bundle, Facts(out.name, None, ()))
        write_bundle(out, source.bundle, source.model.state_dict(), text)
        return None
    kind = counterpart(source, to)
    assert isinstance(source.bundle.model, Vit)
    tensors = written(kind.rules(source.bundle.model), source.model.state_dict())
    with new_folder(out) as draft:
        for name, pieces in kind.files(source.bundle, tensors).items():
            DISK.write(draft / name, pieces)
        certificate = _certified(source, where, draft, kind)
        DISK.write(draft / FILE, [memoryview(certificate.to_json().encode())])
    return certificate


def counterpart(source: Loaded, library: str) -> Format:
    """The format of a library that can hold the model; WeightsError names the parts that have no counterpart."""
    faults = {kind: list(kind.without_counterpart(source.bundle)) for kind in writers(library)}
    for kind, found in faults.items():
        if not found:
            return kind
    kind, found = min(faults.items(), key=lambda each: len(each[1]))
    raise WeightsError(
        f"this model cannot be written as {kind.name}: {'; '.join(found)}",
        where=library,
        remedy="convert it to another library, or keep it as a bundle: --to vitral",
    )


def _certified(source: Loaded, where: Path, draft: Path, kind: Format) -> Certificate:
    """The certificate of what was written; WeightsError, and nothing is kept, where it does not agree."""
    model = source.bundle.model
    assert isinstance(model, Vit)
    hints = [f"image={model.image}", *kind.hints(model)]
    again = opened_model(draft, *hints, reading=Reading(kind.name))
    read = Subject(what=source.bundle.source or "a bundle of vitral", file=str(where), sha256=hash_of(where))
    written_to = Subject(what=kind.name, file=again.file.name, sha256=hash_of(again.file))
    found = certify(source, again.loaded, draft, kind, read, written_to)
    if not found.holds:
        what = f"what was written answers otherwise: {found.worst.words()}"
        raise WeightsError(what, where=str(where), remedy="report this: the conversion is at fault; nothing was kept")
    return found


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
    source, file, told = opened_model(where, *settings, reading=Reading(format, allow_pickle, offline))
    for line in told:
        log.info(line)
    done: tuple[str, ...] = ()
    if changes or layers:
        source, done = adapt(source, *changes, layers=layers)
    folder = Path(out).expanduser()
    return Converted(folder, write_as(source, file, folder, to), done)
