"""Read checkpoints of any library: a path becomes tensors by name. No code in a file is ever run."""

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
    """The tensors of a file, or of the only weight file in a folder, and the config files beside it."""
    file = find_weight_file(path, allow_pickle)
    tensors: dict[str, Tensor] = {}
    for part in shard_files(file):
        found = _tensors(part, allow_pickle)
        if twice := sorted(tensors.keys() & found.keys()):
            message = f"{twice[0]} is in two of its files"
            raise WeightsError(message, code="weights.duplicate_tensor", where=file, hint=DOWNLOAD_AGAIN)
        tensors |= found
    return Checkpoint(file, tensors, _read_json(file.parent / CONFIG), _processor(file.parent))


def find_weight_file(path: Path, allow_pickle: bool = False) -> Path:
    """The file itself; in a folder, the only weight file."""
    if path.is_file():
        return path
    wanted = READERS + (PICKLES if allow_pickle else ())
    with wrap_read_errors(path):
        names = sorted(each for each in path.iterdir() if each.is_file())
    usual = [path / name for name in (INDEX, DEFAULT_FILE) if path / name in names]  # as the libraries search them
    found = usual[:1] or [each for each in names if each.suffix in wanted]
    if len(found) == 1:
        return found[0]
    if found:
        message, hint = "holds several weight files", f"give one of them: {format_choices(each.name for each in found)}"
        raise WeightsError(message, code="weights.ambiguous", where=path, hint=hint)
    if pickles := [each for each in names if each.suffix in PICKLES]:
        raise pickle_error(pickles[0])
    message = f"holds no weight file ({format_choices(READERS)})"
    hint = "give a run, a bundle, or a folder or file of weights"
    raise WeightsError(message, code="weights.not_found", where=path, hint=hint)


def pickle_error(path: Path) -> WeightsError:
    """The error for a pickle, which is read only on explicit request."""
    hint = f"if you trust its source: vitral convert {shlex.quote(str(path))} NEW-FOLDER --to vitral --allow-pickle"
    message = "is a pickle, which can run code when it is loaded"
    return WeightsError(message, code="weights.pickle_refused", where=path, hint=hint)


def _tensors(file: Path, allow_pickle: bool) -> Mapping[str, Tensor]:
    if file.suffix == ".safetensors":
        return read_safetensors(file, DOWNLOAD_AGAIN)
    if file.suffix == ".npz":
        return read_npz(file)
    if file.suffix not in PICKLES:
        message = f"expected {format_choices((*READERS, *PICKLES))}, got {file.suffix or 'a file without a suffix'}"
        raise WeightsError(message, code="weights.unknown_format", where=file, hint="give a file of weights")
    if not allow_pickle:
        raise pickle_error(file)
    return read_torch_pickle(file)


def shard_files(file: Path) -> list[Path]:
    """The file itself, or the files that an index lists."""
    if file.name != INDEX:
        return [file]
    names = _read_json(file, "weights.bad_index").get("weight_map")
    if not isinstance(names, dict):
        raise WeightsError("has no weight_map", code="weights.bad_index", where=file, hint=DOWNLOAD_AGAIN)
    parts = sorted(set(map(str, names.values())))
    if outside := [name for name in parts if Path(name).name != name]:
        message = f"names a file outside its folder: {outside[0]!r}"
        raise WeightsError(message, code="weights.bad_index", where=file)
    return [file.parent / name for name in parts]


def _processor(folder: Path) -> Mapping[str, Any]:
    """The image processor's fields: in a file of their own, or within another in newer folders of Hugging Face."""
    if found := _read_json(folder / PROCESSOR):
        return found
    inner = _read_json(folder / PROCESSORS).get("image_processor", {})
    return inner if isinstance(inner, dict) else {}


def _read_json(path: Path, code: str = "weights.bad_config") -> Mapping[str, Any]:
    """A JSON object, empty where there is no file."""
    if not path.is_file():
        return {}
    with wrap_read_errors(path):
        text = path.read_bytes()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"not JSON: {error}", code=code, where=path, hint=DOWNLOAD_AGAIN) from None
    if not isinstance(found, dict):
        raise WeightsError("expected a JSON object", code=code, where=path, hint=DOWNLOAD_AGAIN)
    return found
