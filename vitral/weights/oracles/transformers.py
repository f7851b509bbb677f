"""transformers in a process of its own: a folder as `save_pretrained` writes it.

    python -m vitral.weights.oracles.transformers FOLDER

The class is the one that config.json names, or the tower for images of a model with several towers.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from vitral.weights.oracles.worker import Runner, answer

CLASSIFIERS = ("ForImageClassification", "ForImageClassificationWithTeacher")
# The class of the tower for images, by model_type; others are opened as AutoModel does.
TOWERS = {
    "clip": "CLIPVisionModel",
    "clip_vision_model": "CLIPVisionModel",
    "metaclip_2": "MetaClip2VisionModel",
    "metaclip_2_vision_model": "MetaClip2VisionModel",
    "siglip": "SiglipVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
    "siglip2": "Siglip2VisionModel",
    "siglip2_vision_model": "Siglip2VisionModel",
    "aimv2": "Aimv2VisionModel",
    "aimv2_vision_model": "Aimv2VisionModel",
}
PROJECTED = ("CLIPModel", "CLIPVisionModelWithProjection", "MetaClip2Model", "MetaClip2VisionModelWithProjection")
NORM_AFTER_POOL = ("CLIP", "MetaClip2")  # beginnings of classes whose last norm sees the pooled token alone
OPTIONS: dict[str, dict[str, Any]] = {"vit": {"add_pooling_layer": False}, "vit_mae": {"mask_ratio": 0.0}}
OPTIONAL = ("pooler.",)  # tensors that a file may lack, since no head reads them


def load_library() -> Any:
    """transformers itself."""
    library: Any = import_module("transformers")
    library.logging.set_verbosity_error()
    return library


def open_model(transformers: Any, request: Mapping[str, Any]) -> Runner:
    """The model of the folder; a tensor that would be newly initialized is an error."""
    folder = request["folder"]
    config = transformers.AutoConfig.from_pretrained(folder)
    name = next(iter(config.architectures or ()), "")
    if name.endswith(CLASSIFIERS):
        model = load(getattr(transformers, name), folder, {})
        return runner(model, lambda found, _tokens: found.logits)
    if name in PROJECTED:
        model = load(getattr(transformers, name), folder, {})
        return runner(model, lambda _found, tower: model.visual_projection(tower.pooler_output))
    if config.model_type in TOWERS:
        return runner(load(getattr(transformers, TOWERS[config.model_type]), folder, {}), lambda *_: None)
    return runner(load(transformers.AutoModel, folder, OPTIONS.get(config.model_type, {})), lambda *_: None)


def load(kind: Any, folder: str, options: Mapping[str, Any]) -> Any:
    """The model of a class with every tensor of the file."""
    model, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    if missing := [name for name in info["missing_keys"] if not any(part in name for part in OPTIONAL)]:
        raise ValueError(f"{model.__class__.__name__} would initialize {missing[0]} anew")
    return model.eval()


def tower_of(model: Any) -> Any:
    """The part of a model that gives the tokens; the model itself if it is a tower."""
    if model.__class__.__name__.endswith(CLASSIFIERS) or hasattr(model, "visual_projection"):
        return getattr(model, "vision_model", model.base_model)
    return model


def runner(model: Any, head: Callable[[Any, Any], Any]) -> Runner:
    """The model's outputs, with the tokens of its tower after the last norm, in our order."""
    tower, kept = tower_of(model), list[Any]()
    tower.register_forward_hook(lambda _part, _given, found: kept.append(found))
    config = getattr(model.config, "vision_config", model.config)
    whole = "input_ids" in inspect.signature(model.forward).parameters  # it wants text, too
    called = tower if whole else model
    accepted = inspect.signature(called.forward).parameters
    last_norm = next((part for name, part in model.named_modules() if name.endswith("post_layernorm")), None)
    unnormed = last_norm is not None and model.__class__.__name__.startswith(NORM_AFTER_POOL)

    def run(images: Any) -> dict[str, Any]:
        kept.clear()
        found = called(**inputs(images, config, accepted))
        tokens = kept[-1].last_hidden_state
        tokens = last_norm(tokens) if unnormed and last_norm is not None else tokens
        return {"tokens": reorder(tokens, config), "logits": head(found, kept[-1])}

    return run


def inputs(images: Any, config: Any, accepted: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call with these images, (B, C, H, W)."""
    size = getattr(config, "image_size", None)
    own = (size, size) if isinstance(size, int) else tuple(size or ())
    found: dict[str, Any] = {"pixel_values": images}
    if "interpolate_pos_encoding" in accepted and tuple(images.shape[2:]) != own:
        found["interpolate_pos_encoding"] = True
    if "noise" in accepted:  # ViT-MAE shuffles the patches by the order of this noise
        torch = import_module("torch")
        patches = images.shape[2] * images.shape[3] // config.patch_size**2
        found["noise"] = torch.arange(patches).expand(len(images), -1)
    if "spatial_shapes" in accepted:  # SigLIP 2 takes the pixels of each patch, its channels last
        torch, side = import_module("torch"), config.patch_size
        grid = images.shape[2] // side, images.shape[3] // side
        cut = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, C, rows, P, columns, P)
        found["pixel_values"] = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, N, P P C)
        found["spatial_shapes"] = torch.tensor([grid] * len(images))
        found["pixel_attention_mask"] = torch.ones(len(images), grid[0] * grid[1], dtype=torch.long)
    return found


def reorder(tokens: Any, config: Any) -> Any:
    """The tokens in our order: the detection tokens of YOLOS, which come last, before the patches."""
    count = getattr(config, "num_detection_tokens", 0)
    if not count:
        return tokens
    return import_module("torch").cat([tokens[:, :1], tokens[:, -count:], tokens[:, 1:-count]], dim=1)


if __name__ == "__main__":
    answer("transformers", load_library, open_model)
