"""Bundles: a model on disk, with all that its weights need.

    best/
        model.safetensors   the model's tensors by name
        config.json         the architecture, the task, the preprocessing, the class names, the format
        README.md           the model card

A bundle is written as `best.tmp-new` and gets its name once all of it is on the disk; the one before it is called
`best.tmp-old` between the two renames, and is read under that name if nothing has the right one. So whatever ends a
process, and whenever, the old bundle or the new one is found.
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
from vitral.core.errors import ConfigError, VitralError, WeightsError
from vitral.core.formats import upgrade_json
from vitral.core.storage import STORAGE, Storage, wrap_read_errors, write_error
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.base import find_mismatches, raise_mismatches
from vitral.models.head import NoHead
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.tensors import read_safetensors, safetensors_chunks, tensor_names

CONFIG, MODEL, CARD = "config.json", "model.safetensors", "README.md"
FILES = (MODEL, CONFIG, CARD)
# Tensors that every model of a kind has, by names that no other library gives them.
OUR_TENSORS = ({"blocks.0.mixer_norm.weight", "blocks.0.mlp_norm.weight"}, {"body.root.0.weight"})
FORMAT = 3  # core/formats.py reads the older ones; 1 had no source, and no models that give features alone
CUSTOM_CODES = ("config.untrusted", "config.not_importable", "config.wrong_class")  # of a user's own classes
COPY_AGAIN = "copy the bundle again, or take another one of the run"


class Bundle(Config):
    """All that a model's weights need: what `config.json` says."""

    format: Literal[3] = 3
    vitral: str = __version__  # that wrote it
    model: Annotated[Vit | Resnet, OpenUnion()]
    task: Literal["classify", "masked_patches", "features"]  # what it was trained for; of a backbone nobody knows
    preprocessing: Preprocessing
    classes: tuple[str, ...]  # by label; a model that was not trained to classify knows none
    activation: Activation = "softmax"  # what turns logits into probabilities: that of the loss it was trained with
    source: str = ""  # where weights came from: the format and the file, the commit of the hub, what was fine-tuned

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
        if self.task == "classify" and isinstance(head, NoHead):
            raise ConfigError("a model that classifies needs a head", code="config.conflict", where="model.head")
        if len(self.classes) != expected:
            message = f"expected {expected} names of classes, got {len(self.classes)}"
            raise ConfigError(message, code="config.conflict", where="classes")
        if channels != self.model.channels:
            message = f"expected {self.model.channels}, as the model has, got {channels}"
            raise ConfigError(message, code="config.conflict", where="preprocessing.decoding.channels")
        if isinstance(self.model, Vit) and not self.model.any_size and image != self.model.image_size:
            message = f"expected {self.model.image_size}, the only size that the model takes, got {image}"
            raise ConfigError(message, code="config.conflict", where="preprocessing.image_size")
        try:
            self.model.layout(image)
        except ConfigError as error:
            raise error.within("preprocessing") from None
        return self


class BundleContents(NamedTuple):
    """A bundle and the tensors of its model, mapped from the disk; changing them changes no file."""

    bundle: Bundle
    tensors: dict[str, Tensor]


def is_bundle(folder: Path) -> bool:
    """Whether a bundle is to be had under this name, whole or damaged; other libraries' folders have the same files."""
    home = _present(folder)
    return ((home / CONFIG).is_file() and _says_so(home / CONFIG)) or (
        (home / MODEL).is_file() and _is_ours(home / MODEL)
    )


def _says_so(config: Path) -> bool:
    """Whether a config.json is of a bundle; of a damaged one, the names of the tensors decide."""
    try:
        data = from_json(config.read_bytes())
    except (ValueError, OSError):
        return False
    return isinstance(data, dict) and "format" in data and "vitral" in data


def _is_ours(file: Path) -> bool:
    """Whether the tensors of a file have our names."""
    try:
        found = set(tensor_names(file))
    except WeightsError:
        return False
    return any(ours <= found for ours in OUR_TENSORS)


def read_bundle(folder: Path) -> BundleContents:
    """The bundle in a folder; WeightsError names the file and the field or tensor that is wrong."""
    home = _present(folder)
    bundle = _read_config(home / CONFIG)
    tensors = read_safetensors(home / MODEL, COPY_AGAIN)
    own = bundle.model.build_empty().state_dict()
    raise_mismatches(
        find_mismatches(own, tensors), str(home / MODEL), f"{CONFIG} beside it is of another model: {COPY_AGAIN}"
    )
    return BundleContents(bundle, tensors)


def write_bundle(
    folder: Path, bundle: Bundle, tensors: Mapping[str, Tensor], card: str, disk: Storage = STORAGE
) -> None:
    """Write a bundle, in the place of the one that may be there: all of it, or nothing is changed.

    The tensors are those of the model's `state_dict`. Only one process at a time may write under a name.
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
    disk.write_file(draft / MODEL, safetensors_chunks(tensors))
    now = bundle.model_copy(update={"vitral": __version__})
    disk.write_file(draft / CONFIG, [memoryview(now.to_json().encode())])
    disk.write_file(draft / CARD, [memoryview(card.encode())])
    disk.fsync(draft)


def _read_config(path: Path) -> Bundle:
    with wrap_read_errors(path):
        text = path.read_bytes()
    try:
        data = from_json(text)
    except ValueError as error:
        message = f"not JSON: {error}"
        raise WeightsError(message, code="weights.bad_config", where=path, hint=COPY_AGAIN) from None
    _check_format(data, path)
    try:
        return Bundle.from_json(upgrade_json(text, formats.BUNDLE, FORMAT))
    except ConfigError as error:
        if error.code in CUSTOM_CODES:  # the bundle is whole
            raise ConfigError(error.message, code=error.code, where=path, hint=error.hint) from None
        advice = "" if error.hint else COPY_AGAIN
        raise WeightsError(str(error), code="weights.bad_config", where=path, hint=advice) from None


def _check_format(data: Any, path: Path) -> None:
    """Refuse what no vitral wrote, and what a later one did: its other fields are not to be judged here."""
    found = data.get("format") if isinstance(data, dict) else None
    if type(found) is not int:
        message = f"not of a bundle of vitral: its format is {found!r}, expected a whole number"
        advice = "give a bundle or a run of vitral"
        raise WeightsError(message, code="weights.unknown_format", where=path, hint=advice)
    if found < 1:
        message = f"format: expected a number from 1 to {FORMAT}, got {found}"
        raise WeightsError(message, code="weights.bad_config", where=path, hint=COPY_AGAIN)
    if found > FORMAT:
        raise WeightsError(
            f"a bundle of format {found}, written by vitral {data.get('vitral')}; expected at most {FORMAT}",
            code="weights.newer_version",
            where=path,
            hint=f"pip install 'vitral>={data.get('vitral')}' (this one is {__version__})",
        )


def _refuse_other_files(folder: Path) -> None:
    """What is replaced is removed, so it may be nothing but a bundle."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        message, advice = "is a file, expected a folder", "choose another name"
        raise VitralError(message, code="file.exists", where=folder, hint=advice)
    if others := sorted(path.name for path in folder.iterdir() if path.name not in FILES):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        message = f"holds {others[0]}{more}, which is no part of a bundle and would be lost"
        advice = "move it elsewhere, or choose another name"
        raise VitralError(message, code="file.exists", where=folder, hint=advice)


def _present(folder: Path) -> Path:
    """The folder itself, or what stood aside when its writer was killed between the renames."""
    aside = _beside(folder, "old")
    return aside if aside.exists() and not folder.exists() else folder


def _beside(folder: Path, message: str) -> Path:
    home = Path(os.path.abspath(folder))  # `.` has no name
    return home.parent / f"{home.name}.tmp-{message}"
