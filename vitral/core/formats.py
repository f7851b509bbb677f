"""Reading documents of older formats. This is the only place that knows the old names.

A document is the plain data of a JSON file: `config.json` of a bundle, `recipe.json`, `export.json`, `state.json`. Each
has a format number; documents without one are of format 1. Renaming a field on disk needs a new number and a line
here, and files of every earlier format stay readable.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json


class Absent(NamedTuple):
    """What a field of a later format was before there was one."""

    value: str
    last: int  # the last format without the field
    kind: str = ""  # of the choice that has the field; empty for a field of every document


class Upgrade(NamedTuple):
    """The changes since a format. Paths are those of the old document; items of a list have the path of the list."""

    fields: Mapping[str, str]  # path -> the new name of its last field
    values: Mapping[str, Mapping[str, str]]  # path -> old value -> new value
    last: int  # the last format with the old names; only the number of later ones changed
    absent: Mapping[str, Absent] = {}  # by current path


def _below(parent: str, table: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{parent}.{path}": new for path, new in table.items()}


_CROP = {"plain": "resize", "inception": "random_resized_crop", "centre": "center"}

_MODEL = {
    "image": "image_size",
    "initial": "init",
    "standardisation": "standardization",
    "stem.standardisation": "standardization",
    "head.classes": "num_classes",
    "block.drop_path": "drop_path_rate",
    "block.scale.initial": "init",
    "mlp.gelu": "activation",  # before format 4 of bundles and 3 of recipes
}
_GELU = {"mlp.gelu": {"tanh": "gelu_tanh", "erf": "gelu", "quick": "quick_gelu"}}
_PREPROCESSING = {"image": "image_size", "view": "crop", "scaling": "normalize", "scaling.deviation": "std"}

BUNDLE = Upgrade(  # formats 1 to 3; format 4 has no manifest
    _below("model", _MODEL) | _below("preprocessing", _PREPROCESSING),
    {"task": {"masked": "masked_patches"}, "preprocessing.view.kind": _CROP} | _below("model", _GELU),
    last=3,
)
EXPORT = Upgrade(  # format 1; format 2 has no manifest
    {"quantisation": "quantization"} | _below("preprocessing", _PREPROCESSING),
    {"task": {"masked": "masked_patches"}, "preprocessing.view.kind": _CROP},
    last=1,
)
STATE = Upgrade({"position.batch": "batch_size"}, {"position.order.kind": {"in_order": "sequential"}}, last=1)
RECIPE = Upgrade(  # formats 1 and 2
    {
        "data.where": "path",
        "data.share": "fraction",
        "tuning": "finetune",
        "tuning.parts": "modules",
        "images.view": "crop",
        "images.still": "eval_crop",
        "images.scaling": "normalize",
        "images.scaling.deviation": "std",
        "task.weights": "class_weights",
        "length.fewest": "min_epochs",
        "length.most": "max_epochs",
        "batch": "batch_size",
        "portions": "microbatches",
        "optimiser": "optimizer",
        "optimiser.rate": "lr",
        "optimiser.decay": "weight_decay",
        "optimiser.epsilon": "eps",
        "evaluate": "eval_every",
        "stopping": "early_stopping",
        "saving": "checkpoints",
        "saving.seconds": "every_seconds",
    }
    | _below("model", _MODEL),
    {
        "data.order.kind": {"in_order": "sequential"},
        "tuning.kind": {"everything": "full", "layers": "last_layers", "probed": "lp_ft"},
        "images.view.kind": _CROP,
        "images.still.kind": _CROP,
        "images.augment.kind": {"colour_jitter": "color_jitter"},
        "task.kind": {"masked": "masked_patches"},
        "task.target.kind": {"mean_colour": "mean_color"},
        "length.kind": {"shown": "images_seen"},
        "average.kind": {"exponential": "ema"},
        "stopping.kind": {"end": "none"},
    }
    | _below("model", _GELU),
    last=2,
    absent={
        "images.jpeg_scale": Absent("smallest", 3),
        "task.draws": Absent("by_process", 4, kind="masked_patches"),
    },
)


def upgrade(document: Any, changes: Upgrade, path: str = "") -> Any:
    """The document with the current names. Current names stay unchanged."""
    if isinstance(document, dict):
        below = {name: f"{path}.{name}" if path else name for name in document}
        return {
            changes.fields.get(below[name], name): upgrade(document[name], changes, below[name]) for name in document
        }
    if isinstance(document, list):
        return [upgrade(each, changes, path) for each in document]
    if isinstance(document, str):
        return changes.values.get(path, {}).get(document, document)
    return document


def upgrade_json(text: bytes, changes: Upgrade, latest: int) -> bytes:
    """The JSON of a document, upgraded if it is older than the latest format.

    Text that is not JSON, and documents of formats that nobody wrote yet, are unchanged: their reader refuses them.
    """
    try:
        document = from_json(text)
    except ValueError:
        return text
    upgraded = upgrade_document(document, changes, latest)
    return text if upgraded is document else to_json(upgraded)


def upgrade_document(document: Any, changes: Upgrade, latest: int) -> Any:
    """The same of parsed JSON."""
    found = document.get("format", 1) if isinstance(document, dict) else latest
    if type(found) is not int or not 1 <= found < latest:
        return document
    renamed = upgrade(document, changes) if found <= changes.last else document
    for path, absent in changes.absent.items():
        if found <= absent.last:
            renamed = _with_absent(renamed, path.split("."), absent)
    return renamed | {"format": latest}


def _with_absent(document: Any, names: Sequence[str], absent: Absent) -> Any:
    """The document with a value at this path, unless there is one, or something else on the way."""
    if not names or not isinstance(document, dict):
        return document
    name, *below = names
    if not below:
        return {name: absent.value} | document if absent.kind in {"", document.get("kind")} else document
    if absent.kind and name not in document:
        return document
    return document | {name: _with_absent(document.get(name, {}), below, absent)}


def _format(document: dict[str, Any]) -> int:
    found = document.get("format", 1)
    return found if isinstance(found, int) else 1


def install_hint(needed: object, own: str) -> str:
    """What to do about a file of a later version. The version is text of that file: no other text becomes a command."""
    if isinstance(needed, str) and re.fullmatch(r"[0-9]{1,6}(\.[0-9a-z]{1,12}){0,5}", needed):
        return f"pip install 'vitral>={needed}' (this one is {own})"
    return f"update vitral (this one is {own})"


def upgrade_manifest(text: bytes) -> bytes:
    """The JSON of a manifest; in format 1, of checkpoints alone, the files are a table by name, with a `size`."""
    document = from_json(text)
    files = document.get("files") if isinstance(document, dict) and _format(document) == 1 else None
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        return text
    entries = [
        {"name": name} | {{"size": "bytes"}.get(key, key): value for key, value in entry.items()}
        for name, entry in sorted(files.items())
    ]
    return to_json(document | {"format": 2, "kind": "checkpoint", "files": entries})


def upgrade_sweep_plan(text: bytes, latest: int) -> bytes:
    """The JSON of a sweep's plan, whose candidates hold recipes of the format with which it was planned."""
    document = from_json(text)
    candidates = document.get("candidates") if isinstance(document, dict) else None
    if not isinstance(candidates, list) or not all(isinstance(each, dict) for each in candidates):
        return text
    upgraded = [each | {"recipe": upgrade_document(each.get("recipe"), RECIPE, latest)} for each in candidates]
    return to_json(document | {"candidates": upgraded})
