"""Every vision tower of transformers as a bare file: the state dict with the names inside the library, no config.

In: every class whose main input is an image and that has at most 120 million parameters with two layers and the other
settings of its default config. Out: models with a text or a sound tower, whose files show more than the vision tower,
and classes whose default config cannot be built here. A file that opens must be right; one that is asked about must be
asked with the true model among the candidates.
"""

import importlib
import inspect
import logging
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import vitral
from benchmarks.zoo.huggingface_models import Case, ask, call, call_patches, call_resampling, call_unmasked
from benchmarks.zoo.judge import Answers, Subject, float64
from benchmarks.zoo.random_weights import randomize, seed_of
from vitral.core.errors import VitralError
from vitral.weights.formats.registry import FAMILIES

GROUPS = ("transformers-bare",)
WAYS = ("bare",)
DEPTHS = ("num_hidden_layers", "depth", "num_layers", "encoder_layers", "decoder_layers", "decoder_num_hidden_layers")
TEXTS = ("text_config", "audio_config", "language_config", "llm_config", "decoder_config", "qformer_config")
LARGEST = 120_000_000  # parameters
ASKING = ("weights.ambiguous", "weights.missing_setting", "weights.bad_config")
# Models that no format reads, by the words of messages.
TITLES = {
    "idefics2": "Idefics2",
    "idefics3": "Idefics3",
    "smolvlm": "SmolVLM",
    "paddleocr_vl": "PaddleOCR-VL",
    "phi4_multimodal": "Phi-4 multimodal",
    "rf_detr": "RF-DETR",
    "cosmos3_edge": "Cosmos 3",
    "instructblipvideo": "hf-blip",  # the same function
    "kosmos2": "hf-clip",
}
CALLS = {"siglip2": call_patches, "siglip": call_resampling, "clip": call_resampling, "vit_mae": call_unmasked}


def find_class(name: str) -> Any:
    """The class of a name such as `dinov2.Dinov2Model`."""
    module, _, kind = name.partition(".")
    return getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), kind)


@cache
def names(group: str) -> list[str]:
    """The classes, as folder and name."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    library = importlib.import_module("transformers")
    library.utils.logging.set_verbosity_error()
    folder = Path(library.__file__ or "").parent / "models"
    found = []
    for file in sorted(folder.glob("*/modeling_*.py")):
        if file.stem == f"modeling_{file.parent.name}" and "pixel_values" in file.read_text(encoding="utf-8"):
            found += [f"{file.parent.name}.{kind}" for kind in _towers(file.parent.name, library.PreTrainedModel)]
    return found


def _towers(module: str, base: Any) -> Iterator[str]:
    try:
        code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    except (ImportError, RuntimeError):  # that need packages which are not installed
        return
    kinds: list[tuple[str, Any]] = sorted(vars(code).items())
    for name, kind in kinds:
        if not inspect.isclass(kind) or not issubclass(kind, base) or kind.__module__ != code.__name__:
            continue
        if name.endswith("PreTrainedModel") or "pixel" not in str(getattr(kind, "main_input_name", "")):
            continue
        build: Any = kind
        try:
            with torch.device("meta"):
                parameters = sum(each.numel() for each in build(small_config(build)).parameters())
        except Exception:
            logging.getLogger("zoo").info("%s is not built from its default config", name)
            continue
        if parameters <= LARGEST:
            yield name


def small_config(kind: Any) -> Any:
    """The default config with two layers, and none for a model with another tower."""
    config = (getattr(kind, "config_class", None) or kind.__init__.__annotations__["config"])()
    assert not any(getattr(config, name, None) is not None for name in TEXTS)
    return _shallow(config)


def _shallow(config: Any) -> Any:
    for name in DEPTHS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 2)
    for part in list(vars(config).values()):
        if hasattr(part, "to_dict"):
            _shallow(part)
    return config


def make(group: str, name: str, folder: Path) -> Subject:
    """Write the state dict of a random model, and ask transformers what it answers if ours opens the file."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    kind, module = find_class(name), name.partition(".")[0]
    model = kind(small_config(kind)).eval()
    randomize(model, seed_of(name))
    file, state = folder / "tower.safetensors", model.state_dict()
    save_file({key: tensor.clone().contiguous() for key, tensor in state.items()}, file)
    answers, notes, candidate, settings = list[Answers](), tuple[str, ...](), "", dict[str, Any]()
    family = next((each.name for each in FAMILIES if model.config.model_type in each.types), "")
    for _ in range(2):
        try:
            vitral.load(file, settings=settings)
        except VitralError as error:
            candidate = family or TITLES.get(module, module) if error.code in ASKING else ""
            if "mixer.heads=N" in str(error) and not settings:
                settings = {"mixer.heads": model.config.num_attention_heads}
                continue
        else:
            patch = model.config.patch_size
            step = patch if isinstance(patch, int) else patch[1]
            native = _size(model.config)
            inner = kind.base_model_prefix if "For" in kind.__name__ and hasattr(model, kind.base_model_prefix) else ""
            case = Case(name, "", {}, inner, CALLS.get(module, call), native=native, pooled=module != "janus")
            with float64():
                wide = kind(small_config(kind)).eval()
                wide.load_state_dict(state)
                answers, notes = ask(wide, case, seed_of(name), (native[0], native[1] + 2 * step))
        break
    return Subject({"bare": (file, {"settings": settings})}, answers, notes, candidate)


def _size(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", 224)
    return (size, size) if isinstance(size, int) else (size[0], size[1])
