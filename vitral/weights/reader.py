"""From a path to tensors by name, whatever library wrote them; nothing in a file is ever run."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitral.core.errors import WeightsError, format_choices
from vitral.core.storage import wrap_read_errors
from vitral.weights.formats.format import CONFIG, PROCESSOR, Checkpoint
from vitral.weights.formats.npz import read_npz
from vitral.weights.tensors import PICKLES, read_safetensors, read_torch_pickle

INDEX, DEFAULT_FILE = "model.safetensors.index.json", "model.safetensors"
PROCESSORS = "processor_config.json"  # newer folders hold several there, by name
READERS = (".safetensors", ".npz")
DOWNLOAD_AGAIN = "copy or download it again"


def read_checkpoint(path: Path, allow_pickle: bool = False) -> Checkpoint:
    """The tensors of a file, or of the one weight file in a folder, and what is noted beside them."""
    file = find_weight_file(path, allow_pickle)
    tensors: dict[str, Tensor] = {}
    for part in shard_files(file):
        found = _tensors(part, allow_pickle)
        if twice := sorted(tensors.keys() & found.keys()):
            message = f"{twice[0]} is in two of its files"
            raise WeightsError(message, code="weights.duplicate_tensor", where=file, hint=DOWNLOAD_AGAIN)
        tensors |= found
    return Checkpoint(file, tensors, _notes(file.parent / CONFIG), _processor(file.parent))


def find_weight_file(path: Path, allow_pickle: bool = False) -> Path:
    """The file that a path stands for; of a folder, the only one that holds weights."""
    if path.is_file():
        return path
    wanted = READERS + (PICKLES if allow_pickle else ())
    with wrap_read_errors(path):
        names = sorted(each for each in path.iterdir() if each.is_file())
    usual = [
        path / name for name in (INDEX, DEFAULT_FILE) if path / name in names
    ]  # what the libraries themselves look for
    found = usual[:1] or [each for each in names if each.suffix in wanted]
    if len(found) == 1:
        return found[0]
    if found:
        message, hint = "holds several files of weights", f"name the one: {format_choices(each.name for each in found)}"
        raise WeightsError(message, code="weights.ambiguous", where=path, hint=hint)
    if pickles := [each for each in names if each.suffix in PICKLES]:
        raise pickle_error(pickles[0])
    message = f"holds no file of weights ({format_choices(READERS)})"
    hint = "give a run, a bundle, or a folder or file of weights"
    raise WeightsError(message, code="weights.not_found", where=path, hint=hint)


def pickle_error(path: Path) -> WeightsError:
    """A pickle is a program: it is opened only for who asks for that."""
    hint = f"if you trust who made it: vitral convert {shlex.quote(str(path))} NEW-FOLDER --to vitral --allow-pickle"
    message = "is a pickle, which can run code when it is read"
    return WeightsError(message, code="weights.pickle_refused", where=path, hint=hint)


def _tensors(file: Path, allow_pickle: bool) -> Mapping[str, Tensor]:
    if file.suffix == ".npz":
        return read_npz(file)
    if file.suffix in PICKLES:
        if not allow_pickle:
            raise pickle_error(file)
        return read_torch_pickle(file)
    if file.suffix not in READERS:
        message = f"expected {format_choices((*READERS, *PICKLES))}, got a file that ends in {file.suffix or 'nothing'}"
        raise WeightsError(message, code="weights.unknown_format", where=file, hint="give a file of weights")
    return read_safetensors(file, DOWNLOAD_AGAIN)


def shard_files(file: Path) -> list[Path]:
    """The files that hold the weights: the file itself, or those beside it that an index names."""
    if file.name != INDEX:
        return [file]
    names = _notes(file, "weights.bad_index").get("weight_map")
    if not isinstance(names, dict):
        raise WeightsError("has no weight_map", code="weights.bad_index", where=file, hint=DOWNLOAD_AGAIN)
    parts = sorted(set(map(str, names.values())))
    if outside := [name for name in parts if Path(name).name != name]:
        message = f"names a file outside its folder: {outside[0]!r}"
        raise WeightsError(message, code="weights.bad_index", where=file)
    return [file.parent / name for name in parts]


def _processor(folder: Path) -> Mapping[str, Any]:
    """What is noted of images: in a file of its own, or among other things in newer folders of Hugging Face."""
    if found := _notes(folder / PROCESSOR):
        return found
    inner = _notes(folder / PROCESSORS).get("image_processor", {})
    return inner if isinstance(inner, dict) else {}


def _notes(path: Path, code: str = "weights.bad_config") -> Mapping[str, Any]:
    """A JSON file, or nothing where there is none."""
    if not path.is_file():
        return {}
    with wrap_read_errors(path):
        text = path.read_bytes()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"not JSON: {error}", code=code, where=path, hint=DOWNLOAD_AGAIN) from None
    if not isinstance(found, dict):
        raise WeightsError("expected fields by name", code=code, where=path, hint=DOWNLOAD_AGAIN)
    return found
