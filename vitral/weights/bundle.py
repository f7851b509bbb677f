"""Bundles: a model on disk, with everything its weights need.

    best/
        model.safetensors   the model's tensors by name
        config.json         the architecture, the task, the preprocessing, the class names, the format
        manifest.json       the size and SHA-256 of every other file but the card
        manifest.sig        the signature of the manifest, if `vitral sign` wrote one
        README.md           the model card, which may be edited
        code/               copies of the files of a user's own classes, if the model has any

A bundle is written as `best.tmp-new` and renamed once it is complete on disk; the previous one is called
`best.tmp-old` between the two renames, and is read under that name if there is no `best`. So the old bundle or the new
one is found whenever a process is killed.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import model_validator
from pydantic_core import from_json
from torch import Tensor

from vitral import __version__
from vitral.core import formats
from vitral.core.activation import Activation
from vitral.core.config import Config, OpenUnion
from vitral.core.custom import copy_sources, use_copies
from vitral.core.errors import ConfigError, VitralError, WeightsError
from vitral.core.files import read_file
from vitral.core.formats import install_hint, upgrade_json
from vitral.core.manifest import (
    CARD,
    MANIFEST,
    SIGNATURE,
    FileCheck,
    Manifest,
    check_files,
    file_entries,
    is_artifact,
    write_manifest,
)
from vitral.core.storage import STORAGE, Storage, wrap_read_errors, write_error
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.base import find_mismatches, raise_mismatches
from vitral.models.head import NoHead
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.tensors import read_safetensors, safetensors_chunks, tensor_names

CONFIG, MODEL, CODE = "config.json", "model.safetensors", "code"
FILES = (MODEL, CONFIG, MANIFEST, SIGNATURE, CARD, CODE)
# Tensors that every model of a kind has, by names that no other library gives them.
OUR_TENSORS = ({"blocks.0.mixer_norm.weight", "blocks.0.mlp_norm.weight"}, {"body.root.0.weight"})
FORMAT = 5  # core/formats.py reads the older ones; 1 had no source, and no models that give features alone
HAS_MANIFEST = 5  # and later formats
CUSTOM_CODES = ("config.untrusted", "config.not_importable", "config.wrong_class")  # of a user's own classes
COPY_AGAIN = "copy the bundle again, or take another one of the run"


class Bundle(Config):
    """Everything that a model's weights need: the content of `config.json`."""

    format: Literal[5] = 5
    vitral: str = __version__  # that wrote it
    model: Annotated[Vit | Resnet, OpenUnion()]
    task: Literal["classify", "masked_patches", "features"]  # `trains` of its task; features if that is unknown
    preprocessing: Preprocessing
    classes: tuple[str, ...]  # by label; empty unless the task is classify
    activation: Activation = "softmax"  # from logits to probabilities, as in the loss it was trained with
    source: str = ""  # of the weights: the format and file, the commit on the hub, what was fine-tuned
    assumptions: tuple[str, ...] = ()  # what the file of another library did not record

    @property
    def transform(self) -> Preprocessing:
        """The preprocessing as a function: `bundle.transform("cat.jpg")` is the model's input (C, H, W), float32.

        It takes a path, bytes, a PIL image or an array, and is picklable: a `Dataset`'s transform, in workers too.
        """
        return self.preprocessing

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        head, channels, image = self.model.head, self.preprocessing.decoding.channels, self.preprocessing.image_size
        expected = 0 if self.task != "classify" or isinstance(head, NoHead) else head.num_classes
        where = message = ""
        if self.task == "classify" and isinstance(head, NoHead):
            where, message = "model.head", "a model that classifies needs a head"
        elif len(self.classes) != expected:
            where, message = "classes", f"expected {expected} class names, got {len(self.classes)}"
        elif channels != self.model.channels:
            where = "preprocessing.decoding.channels"
            message = f"expected {self.model.channels} as in the model, got {channels}"
        elif isinstance(self.model, Vit) and not self.model.any_size and image != self.model.image_size:
            where = "preprocessing.image_size"
            message = f"expected {self.model.image_size}, the only size that the model accepts, got {image}"
        if message:
            raise ConfigError(message, code="config.conflict", where=where)
        try:
            self.model.layout(image)
        except ConfigError as error:
            raise error.within("preprocessing") from None
        return self


class BundleContents(NamedTuple):
    """A bundle and the tensors of its model, mapped from the disk; changing them changes no file."""

    bundle: Bundle
    tensors: dict[str, Tensor]
    check: FileCheck  # of the files


def is_bundle(folder: Path) -> bool:
    """Whether there is a bundle, complete or damaged; folders of other libraries have files of the same names.

    If config.json is damaged, the manifest or the names of the tensors decide.
    """
    home = _present(folder)
    if is_artifact(home, "bundle"):
        return True
    try:
        data = from_json(read_file(home / CONFIG))
        if isinstance(data, dict) and "format" in data and "vitral" in data:
            return True
    except (ValueError, OSError):
        pass
    try:
        found = set(tensor_names(home / MODEL))
    except WeightsError:
        return False
    return any(ours <= found for ours in OUR_TENSORS)


def read_bundle(folder: Path) -> BundleContents:
    """The bundle in a folder; WeightsError names the file and the field or tensor that is wrong."""
    contents = begin_bundle(folder)
    contents.check.wait()
    return contents


def begin_bundle(folder: Path) -> BundleContents:
    """The same while its weights are still being hashed: whoever uses them waits for `check`."""
    home = _present(folder)
    check = check_files(home, "bundle", (CONFIG, MODEL), CODE, COPY_AGAIN)
    check.wait(but=(MODEL,))  # also large files of classes and code are checked before they are used
    with check.explaining():
        bundle = _read_config(home / CONFIG, check)
        tensors = read_safetensors(home / MODEL, COPY_AGAIN)
        own = bundle.model.build_empty().state_dict()
        raise_mismatches(
            find_mismatches(own, tensors), str(home / MODEL), f"{CONFIG} beside it is of another model: {COPY_AGAIN}"
        )
    return BundleContents(bundle, tensors, check)


def write_bundle(
    folder: Path, bundle: Bundle, tensors: Mapping[str, Tensor], card: str, disk: Storage = STORAGE
) -> None:
    """Write a bundle and replace the one that may exist: completely, or nothing is changed.

    The tensors are those of the model's `state_dict`. Only one process at a time may write to a folder.
    """
    own = bundle.model.build_empty().state_dict()
    raise_mismatches(
        find_mismatches(own, tensors), str(folder), "write the tensors of the model that the bundle describes"
    )
    draft, aside = _beside(folder, "new"), _beside(folder, "old")
    try:
        for place in (folder, draft, aside):
            _refuse_other_files(place)
        disk.remove(draft)
        try:
            _write(draft, bundle, tensors, card, disk)
            disk.replace_folder(draft, folder, aside)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        kept = "the previous bundle is intact" if is_bundle(folder) else "there is no bundle"
        raise write_error(error, folder, kept, then="try again") from error


def _write(draft: Path, bundle: Bundle, tensors: Mapping[str, Tensor], card: str, disk: Storage) -> None:
    disk.make_folder(draft)
    now = bundle.model_copy(update={"vitral": __version__})
    digests = {
        MODEL: disk.write_file(draft / MODEL, safetensors_chunks(tensors)),
        CONFIG: disk.write_file(draft / CONFIG, [memoryview(now.to_json().encode())]),
    }
    disk.write_file(draft / CARD, [memoryview(card.encode())])
    if sources := copy_sources(now.model_dump(mode="json")):
        disk.make_folder(draft / CODE)
        for name, content in sources.items():
            digests[f"{CODE}/{name}"] = disk.write_file(draft / CODE / name, [memoryview(content)])
        disk.fsync(draft / CODE)
    write_manifest(draft, Manifest(kind="bundle", files=file_entries(digests)), disk)
    disk.fsync(draft)


def _read_config(path: Path, check: FileCheck) -> Bundle:
    with wrap_read_errors(path):
        text = read_file(path)
    try:
        data = from_json(text)
    except ValueError as error:
        message = f"not JSON: {error}"
        raise WeightsError(message, code="weights.bad_config", where=path, hint=COPY_AGAIN) from None
    _check_format(data, path)
    check.require_manifest(data["format"], HAS_MANIFEST, COPY_AGAIN)
    try:
        with use_copies(path.parent / CODE):
            return Bundle.from_json(upgrade_json(text, formats.BUNDLE, FORMAT))
    except ConfigError as error:
        if error.code in CUSTOM_CODES:  # the bundle is whole
            raise ConfigError(error.message, code=error.code, where=path, hint=error.hint) from None
        advice = "" if error.hint else COPY_AGAIN
        raise WeightsError(str(error), code="weights.bad_config", where=path, hint=advice) from None


def _check_format(data: Any, path: Path) -> None:
    """Reject files that vitral did not write, and those of later versions, before their other fields are checked."""
    found = data.get("format") if isinstance(data, dict) else None
    if type(found) is not int:
        message, hint = (
            f"not a bundle: its format is {found!r}, expected a whole number",
            "give a bundle or a run of vitral",
        )
        raise WeightsError(message, code="weights.unknown_format", where=path, hint=hint)
    if found < 1:
        message = f"format: expected a number from 1 to {FORMAT}, got {found}"
        raise WeightsError(message, code="weights.bad_config", where=path, hint=COPY_AGAIN)
    if found > FORMAT:
        raise WeightsError(
            f"a bundle of format {found}, written by vitral {data.get('vitral')}; expected at most {FORMAT}",
            code="weights.newer_version",
            where=path,
            hint=install_hint(data.get("vitral"), __version__),
        )


def _refuse_other_files(folder: Path) -> None:
    """Reject a folder that is not a bundle, because what is replaced is deleted."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise VitralError("is a file, expected a folder", code="file.exists", where=folder, hint="choose another name")
    if others := sorted(path.name for path in folder.iterdir() if path.name not in FILES):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        message = f"contains {others[0]}{more}, which is not part of a bundle and would be lost"
        raise VitralError(message, code="file.exists", where=folder, hint="move it elsewhere, or choose another name")


def _present(folder: Path) -> Path:
    """The folder itself, or the previous bundle if the writer was killed between the renames."""
    aside = _beside(folder, "old")
    return aside if aside.exists() and not folder.exists() else folder


def _beside(folder: Path, suffix: str) -> Path:
    home = Path(os.path.abspath(folder))  # `.` has no name
    return home.parent / f"{home.name}.tmp-{suffix}"
