"""Write the table of timm's Vision Transformers: what each name of its registry passes to the model's constructor.

Run `.venv-bench/bin/python -m tools.make_timm_architectures` after `make bench`. Running it again writes the same
bytes. The names and shapes of tensors come from timm's own models, made on the meta device.
"""

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from vitral.weights.formats.timm.signature import tensor_signature
from vitral.weights.oracles.torchvision_stub import stub_torchvision

PATTERNS = ("vit_*", "deit*", "eva*", "beit*", "flexivit*", "aimv2*", "naflexvit*", "test_vit*")
TABLE = Path("vitral/weights/formats/timm/architectures.json")
DIGESTS = Path("tests/fixtures/timm_tensors.json")
DEPTH = 3  # of the models whose tensors are recorded for the tests
KINDS = {
    "VisionTransformer": "vit",
    "VisionTransformerDistilled": "distilled",
    "Eva": "eva",
    "Beit": "beit",
    "VisionTransformerRelPos": "relpos",
    "NaFlexVit": "naflex",
}
MODULES = ("vision_transformer", "deit", "eva", "beit", "vision_transformer_relpos", "vision_transformer_hybrid",
           "naflexvit")  # fmt: skip
COMMON = {"crop_pct": 0.9, "crop_mode": "center", "interpolation": "bicubic", "num_classes": 1000,
          "input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "fixed_input_size": True}  # fmt: skip
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}
ONLY_BUILDING = {"weight_init", "fix_init", "head_init_scale", "pretrained_filter_fn", "feature_cfg", "device", "dtype",
                 "pretrained_strict", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}  # fmt: skip


class Stop(Exception):
    """Carries what an entry point passes to the constructor."""


def stop(model: type, variant: str, pretrained: bool, **arguments: Any) -> None:
    raise Stop(model, arguments)


class Backbone(nn.Module):
    """Stands for the convolutions of a hybrid."""

    def __init__(self, name: str, layers: Iterable[int] = ()) -> None:
        super().__init__()
        self.facts = {"name": name} | ({"layers": list(layers)} if name == "resnetv2" else {})


def fake(name: str) -> Any:
    return lambda layers=(), **_: Backbone(name, layers)


def encode(name: str, value: Any) -> Any:
    """A value as JSON holds it: norms as kind and eps, other classes by their names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [encode(name, each) for each in value]
    if name.endswith("norm_layer"):
        norm = value(8)
        kind = {"LayerNorm": "layer_norm", "RmsNorm": "rms_norm"}.get(type(norm).__name__, type(norm).__name__)
        return {"kind": kind, "eps": norm.eps}
    if name == "act_layer":
        return ACTIVATIONS[value.__name__]
    if isinstance(value, partial) and name == "embed_layer":
        return encode(name, value.func) if "backbone" not in value.keywords else value.keywords["backbone"].facts
    if isinstance(value, partial):
        named = {key: encode(key, each) for key, each in value.keywords.items()}
        return {"name": getattr(value.func, "__name__", str(value.func)), **named}
    return value.__name__


def arguments_of(name: str) -> tuple[str, dict[str, Any]]:
    """The kind of model and the arguments that its entry point passes, without those that are the default."""
    timm = import_module("timm")
    try:
        timm.models.model_entrypoint(name)(pretrained=False)
    except Stop as found:
        model, given = found.args
    if is_dataclass(given.get("cfg")):
        given = {**asdict(given.pop("cfg")), **given}
        defaults = asdict(import_module("timm.models.naflexvit").NaFlexVitCfg())
    else:
        defaults = {key: each.default for key, each in inspect.signature(model).parameters.items()}
        defaults |= {key: each.default for key, each in inspect.signature(model.__mro__[-3]).parameters.items()}
    plain = {
        key: encode(key, value)
        for key, value in sorted(given.items())
        if key not in ONLY_BUILDING and (key not in defaults or (defaults[key] is not value and defaults[key] != value))
    }
    return KINDS[model.__name__], plain


def images_of(name: str) -> dict[str, dict[str, Any]]:
    """What each set of pretrained weights notes of its images: the default's own, then where others differ from it."""
    registry = import_module("timm.models._registry")
    configs = registry._model_pretrained_cfgs
    first = registry.get_pretrained_cfg(name).tag or ""
    tags = [tag for arch, _, tag in (key.partition(".") for key in configs) if arch == name and tag and tag != first]
    facts = {tag: facts_of(registry.get_pretrained_cfg(f"{name}.{tag}" if tag else name)) for tag in (first, *tags)}
    common = COMMON | facts[first]
    return {
        tag: {field: value for field, value in found.items() if value != (COMMON if tag == first else common)[field]}
        for tag, found in facts.items()
    }


def facts_of(config: Any) -> dict[str, Any]:
    values = {field: getattr(config, field) for field in COMMON}
    return {field: list(value) if isinstance(value, tuple) else value for field, value in values.items()}


def shapes_of(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The tensors that timm saves of a model with few layers."""
    few: dict[str, Any] = {"depth": DEPTH}
    if isinstance(arguments.get("num_kv_heads"), list):
        few["num_kv_heads"] = arguments["num_kv_heads"][:DEPTH]
    with torch.device("meta"):
        model = import_module("timm").create_model(name, **few)
    for key, tensor in model.state_dict().items():
        yield key, list(tensor.shape)


def write_lines(path: Path, head: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
    """A JSON object with one row a line."""
    first = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items())
    path.write_text("{" + ",\n".join([*first, '"models": {\n' + lines + "\n}}"]) + "\n", encoding="utf-8")


def main() -> None:
    stub_torchvision()
    timm = import_module("timm")
    names = sorted({name for pattern in PATTERNS for name in timm.list_models(pattern)})
    hybrid = "timm.models.vision_transformer_hybrid"
    fakes = {f"timm.models.{module}.build_model_with_cfg": stop for module in MODULES}
    fakes |= {f"{hybrid}._resnetv2": fake("resnetv2"), f"{hybrid}.ConvStem": fake("convolutions")}
    fakes |= {f"{hybrid}.{each}": fake(each) for each in ("resnet26d", "resnet50d")}
    rows: dict[str, Any] = {}
    patches = [patch(target, value) for target, value in fakes.items()]
    for each in patches:
        each.start()
    for name in names:
        kind, arguments = arguments_of(name)
        rows[name] = {"kind": kind, "arguments": arguments, "images": images_of(name)}
    for each in patches:
        each.stop()
    digests: dict[str, Any] = {}
    for name in names:
        shapes = dict(shapes_of(name, rows[name]["arguments"]))
        rows[name]["signature"] = tensor_signature(shapes)
        text = json.dumps(sorted(shapes.items()))
        digests[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    write_lines(TABLE, {"timm": timm.__version__, "images": COMMON}, rows)
    write_lines(DIGESTS, {"timm": timm.__version__, "depth": DEPTH}, digests)
    print(f"{len(rows)} models: {TABLE.stat().st_size / 1000:.0f} KB, {DIGESTS.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
