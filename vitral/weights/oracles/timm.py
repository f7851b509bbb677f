"""timm in a separate process: a folder as the hub has it, or an architecture by name and a state dict.

    python -m vitral.weights.oracles.timm FOLDER

Files of other libraries that timm can convert (Google's npz, Facebook's state dicts) are opened by timm's conversion.
"""

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vitral.weights.oracles.torchvision_stub import import_beside_torchvision
from vitral.weights.oracles.worker import Answer, Runner, answer


def load_library() -> Any:
    """timm itself."""
    return import_beside_torchvision("timm")


def open_model(timm: Any, request: Mapping[str, Any]) -> Runner:
    """A model as a user of timm would open it: `local-dir:FOLDER`, or by name with every tensor of the file."""
    if "folder" in request:
        model = timm.create_model(f"local-dir:{request['folder']}", pretrained=True)
    else:
        model = timm.create_model(request["arch"], pretrained=False, **request["arguments"])
        if "npz" in request:
            model.load_pretrained(request["npz"])
        else:
            tensors = import_module("safetensors.torch").load_file(request["file"])
            model.load_state_dict(converted(tensors, model) if request.get("convert") else tensors, strict=True)
    model.eval()

    kept: list[Any] = []
    if hasattr(model, "norm"):
        model.norm.register_forward_hook(lambda _part, given, _found: kept.append(given[0]))

    def run(images: Any) -> Answer:
        kept.clear()
        tokens = model.forward_features(images)
        before = [each for each in kept if each.shape == tokens.shape]
        after = [model.fc_norm(tokens)] if hasattr(model, "fc_norm") else []  # a pool may have the last norm
        logits = model.forward_head(tokens)
        headed = logits.ndim == 2 and request.get("logits", True)
        return Answer([tokens, *before, *after], logits if headed else None)

    return run


def converted(tensors: dict[str, Any], model: Any) -> dict[str, Any]:
    """The state dict as timm itself converts it when it downloads such a file."""
    convert = sys.modules[type(model).__module__].checkpoint_filter_fn
    scales = {"adapt_layer_scale": True} if "adapt_layer_scale" in inspect.signature(convert).parameters else {}
    return dict(convert(tensors, model, **scales))


if __name__ == "__main__":
    answer("timm", load_library, open_model)
