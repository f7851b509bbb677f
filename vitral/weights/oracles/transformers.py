"""transformers in a separate process: a folder as `save_pretrained` writes it.

    python -m vitral.weights.oracles.transformers FOLDER

The class is the one that config.json names. Where it wants texts too, only its side for images is run.
"""

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vitral.weights.oracles.worker import Answer, Runner, answer

POOLER = "pooler."  # tensors that a file may lack, since no head reads them
NORMS = ("layernorm", "post_layernorm", "norm", "pooler.layernorm", "rms_norm", "layer_norm")  # the last one of a tower


def load_library() -> Any:
    """transformers itself."""
    library: Any = import_module("transformers")
    library.logging.set_verbosity_error()
    return library


def open_model(transformers: Any, request: Mapping[str, Any]) -> Runner:
    """The model of the folder; a tensor that would be newly initialized is an error."""
    config = transformers.AutoConfig.from_pretrained(request["folder"])
    name = next(iter(config.architectures or ()), "")
    kind = getattr(transformers, name, transformers.AutoModel)
    model, info = kind.from_pretrained(request["folder"], output_loading_info=True)
    missing = [name for name in info["missing_keys"] if POOLER not in name]
    if missing:
        raise ValueError(f"{type(model).__name__} would initialize {missing[0]} anew")
    if info["missing_keys"]:  # the pooler alone
        model = kind.from_pretrained(request["folder"], add_pooling_layer=False)
    return runner(model.eval(), request.get("logits", True))


def tower_of(model: Any) -> Any:
    """The part of a model that gives the tokens; the model itself if it is a tower."""
    if hasattr(model, "vision_model"):
        return model.vision_model
    plain = type(model).__name__.endswith(("Model", "Backbone"))  # a base_model may be its layers alone
    return model if plain else model.base_model


def runner(model: Any, logits: bool) -> Runner:
    """The model's tokens, in our order, and, if wanted, its logits or the vector that it makes of an image."""
    tower, kept = tower_of(model), dict[str, Any]()
    config = getattr(model.config, "vision_config", model.config)
    norms = {name: part for name in NORMS if (part := find_part(tower, name)) is not None}
    tower.register_forward_hook(lambda _part, _given, found: kept.update(output=found))
    for name, part in norms.items():
        part.register_forward_pre_hook(lambda _part, given, name=name: kept.update({name: given[0]}))
    texts = "input_ids" in inspect.signature(model.forward).parameters
    call = model.get_image_features if texts else model

    def run(images: Any) -> Answer:
        kept.clear()
        found = call(**inputs(images, config, tower if texts else model))
        last = getattr(kept.get("output", found), "last_hidden_state", None)
        if last is None:  # a backbone, which makes maps of the tokens
            last = next(kept[name] for name in norms if name in kept)
        before = [kept[name] for name in norms if name in kept and kept[name].shape == last.shape]
        tokens = [last, *before, *(part(last) for part in norms.values())]
        return Answer([reorder(each, config) for each in tokens], pooled(found) if logits else None)

    return run


def find_part(model: Any, path: str) -> Any:
    """A part of a model by its path, or nothing."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def pooled(found: Any) -> Any:
    """Logits, or the embedding of an image, or what the pooler gives, (B, K); nothing where there is none."""
    given = [getattr(found, name, None) for name in ("logits", "image_embeds", "pooler_output")]
    given = [found] if hasattr(found, "ndim") else given
    return next((each for each in given if each is not None and each.ndim == 2), None)


def inputs(images: Any, config: Any, model: Any) -> dict[str, Any]:
    """The keywords of a call with these images, (B, C, H, W)."""
    torch, accepted = import_module("torch"), inspect.signature(model.forward).parameters
    size = getattr(config, "image_size", None)
    own = (size, size) if isinstance(size, int) else tuple(size or ())
    found: dict[str, Any] = {"pixel_values": images}
    passes_on = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in accepted.values())
    if ("interpolate_pos_encoding" in accepted or passes_on) and tuple(images.shape[2:]) != own:
        found["interpolate_pos_encoding"] = True
    if "noise" in accepted:  # ViT-MAE drops patches, and shuffles the others by the order of this noise
        model.config.mask_ratio = 0.0
        patches = images.shape[2] * images.shape[3] // config.patch_size**2
        found["noise"] = torch.arange(patches).expand(len(images), -1)
    if "spatial_shapes" in accepted:  # SigLIP 2 takes the pixels of each patch, its channels last
        side = config.patch_size
        cut = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, C, rows, P, columns, P)
        found = {"pixel_values": cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)}  # (B, N, P P C)
        found["spatial_shapes"] = torch.tensor([[images.shape[2] // side, images.shape[3] // side]] * len(images))
        found["pixel_attention_mask"] = torch.ones(found["pixel_values"].shape[:2], dtype=torch.long)
    return found


def reorder(tokens: Any, config: Any) -> Any:
    """The tokens in our order: the detection tokens of YOLOS, which come last, before the patches."""
    count = getattr(config, "num_detection_tokens", 0)
    if not count:
        return tokens
    return import_module("torch").cat([tokens[:, :1], tokens[:, -count:], tokens[:, 1:-count]], dim=1)


if __name__ == "__main__":
    answer("transformers", load_library, open_model)
