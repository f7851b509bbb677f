"""Read checkpoints of any library: a path becomes tensors by name. No code in a file is ever run."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitral.core.config import Config
from vitral.core.documents import parse_json
from vitral.core.errors import WeightsError, format_choices
from vitral.core.files import open_file, read_file
from vitral.core.storage import wrap_read_errors
from vitral.weights.containers import StateDict, select_prefix
from vitral.weights.formats.format import CONFIG, PROCESSOR, Checkpoint
from vitral.weights.formats.npz import read_npz
from vitral.weights.tensors import PICKLES, is_pickle, read_safetensors, read_torch_pickle

INDEX, DEFAULT_FILE = "model.safetensors.index.json", "model.safetensors"
PROCESSORS = "processor_config.json"  # newer folders hold several there, by name
READERS = (".safetensors", ".npz")
DOWNLOAD_AGAIN = "copy or download it again"
ADAPTER = "adapter_model.safetensors"
PART = re.compile(r"-[0-9]{5}-of-[0-9]{5}\.")  # in the names of files that an index lists
POINTER_BYTES = 512  # a pointer of Git LFS has fewer


class ReadOptions(Config):
    """How checkpoints of other libraries are read; a bundle needs none of it."""

    format: str = ""  # where tensor names fit two formats
    arch: str = ""  # the architecture by its name in the library: `vit_base_patch16_224` of timm
    weights_key: str = ""  # of one set of weights in a file with several: `state_dict_ema`
    allow_pickle: bool = False
    offline: bool = False  # a hub model is read from the cache only

    def given(self) -> list[str]:
        """The options that describe a checkpoint of another library and are set."""
        return [name for name in ("format", "arch", "weights_key") if getattr(self, name)]


DEFAULT_OPTIONS = ReadOptions()


def read_checkpoint(path: Path, options: ReadOptions = DEFAULT_OPTIONS) -> Checkpoint:
    """The tensors of a file, or of the only weight file in a folder, and the config files beside it."""
    file = find_weight_file(path, options.allow_pickle)
    tensors: Mapping[str, Tensor] = {}
    messages: list[str] = []
    for part in shard_files(file):
        found, more = _tensors(part, options)
        messages += more
        if twice := sorted(tensors.keys() & found.keys()):
            message = f"{twice[0]} is in two of its files"
            raise WeightsError(message, code="weights.duplicate_tensor", where=file, hint=DOWNLOAD_AGAIN)
        tensors = {**tensors, **found}
    if options.weights_key and not is_pickle(file):
        tensors, more = select_prefix(tensors, options.weights_key, file)
        messages += more
    if file.name != ADAPTER and (file.parent / ADAPTER).is_file():
        messages.append(f"ignored {ADAPTER}: an adapter that is not merged into these weights")
    config, processor = _read_json(file.parent / CONFIG), _processor(file.parent)
    return Checkpoint(file, tensors, config, processor, (), tuple(messages), options.arch)


def find_weight_file(path: Path, allow_pickle: bool = False) -> Path:
    """The file itself; in a folder, the one that libraries look for, or else the only weight file."""
    if path.is_file():
        if PART.search(path.name):
            raise _one_part(path, "give the folder, where its index is")
        return path
    with wrap_read_errors(path):
        names = sorted(each for each in path.iterdir() if each.is_file())
    usual = [path / name for name in (DEFAULT_FILE, INDEX) if path / name in names]  # as the libraries search them
    found = usual[:1] or [each for each in names if each.suffix in READERS or (allow_pickle and is_pickle(each))]
    if found and not usual and all(PART.search(each.name) for each in found):
        raise _one_part(found[0], f"copy the index, {INDEX}, into the folder too")
    if len(found) == 1:
        return found[0]
    if found:
        message, hint = "holds several weight files", f"give one of them: {format_choices(each.name for each in found)}"
        raise WeightsError(message, code="weights.ambiguous", where=path, hint=hint)
    if pickles := list(filter(is_pickle, names)):
        raise pickle_error(pickles[0])
    message = f"holds no weight file ({format_choices(READERS)})"
    hint = "give a run, a bundle, or a folder or file of weights"
    raise WeightsError(message, code="weights.not_found", where=path, hint=hint)


def _one_part(path: Path, hint: str) -> WeightsError:
    """The error for a file that holds a part of a model's weights."""
    message = "is one of several files of a model, and not all of its weights"
    return WeightsError(message, code="weights.bad_index", where=path, hint=hint)


def pickle_error(path: Path) -> WeightsError:
    """The error for a pickle, which is read only on explicit request."""
    hint = f"if you trust its source: vitral convert {shlex.quote(str(path))} NEW-FOLDER --to vitral --allow-pickle"
    message = "is a pickle, which can run code when it is loaded"
    return WeightsError(message, code="weights.pickle_refused", where=path, hint=hint)


def check_content(file: Path) -> None:
    """Refuse what stands in place of weights where a download went wrong: nothing, a pointer of Git LFS, a web page."""
    with wrap_read_errors(file), open_file(file) as stream:
        begin = stream.read(POINTER_BYTES).lstrip()
    if not begin:
        message, hint = "is empty", DOWNLOAD_AGAIN
    elif begin.startswith(b"version https://git-lfs"):
        size = re.search(rb"^size (\d+)", begin, re.MULTILINE)
        of = f" to a file of {int(size[1]):,} bytes" if size else ""
        message, hint = f"is a pointer of Git LFS{of}, not the file itself", "run git lfs pull in its repository"
    elif begin[:14].lower().startswith((b"<!doctype html", b"<html")):
        message, hint = "is a web page, no weights", "download the file itself, not the page about it"
    else:
        return
    raise WeightsError(message, code="weights.corrupt", where=file, hint=hint)


def _tensors(file: Path, options: ReadOptions) -> StateDict:
    if file.suffix in READERS or is_pickle(file):
        check_content(file)
    if file.suffix == ".safetensors":
        return StateDict(read_safetensors(file, DOWNLOAD_AGAIN))
    if file.suffix == ".npz":
        return StateDict(read_npz(file))
    if not is_pickle(file):
        message = f"expected {format_choices((*READERS, *PICKLES))}, got {file.suffix or 'a file without a suffix'}"
        raise WeightsError(message, code="weights.unknown_format", where=file, hint="give a file of weights")
    if not options.allow_pickle:
        raise pickle_error(file)
    return read_torch_pickle(file, options.weights_key)


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
    """The image processor's fields: within another file in newer folders of Hugging Face, which goes first there."""
    inner = _read_json(folder / PROCESSORS).get("image_processor")
    return inner if isinstance(inner, dict) else _read_json(folder / PROCESSOR)


def _read_json(path: Path, code: str = "weights.bad_config") -> Mapping[str, Any]:
    """A JSON object, empty where there is no file."""
    if not path.exists():
        return {}
    with wrap_read_errors(path):
        text = read_file(path)
    try:
        found = parse_json(text)
    except ValueError as error:
        raise WeightsError(f"not JSON: {error}", code=code, where=path, hint=DOWNLOAD_AGAIN) from None
    if not isinstance(found, dict):
        raise WeightsError("expected a JSON object", code=code, where=path, hint=DOWNLOAD_AGAIN)
    return found
