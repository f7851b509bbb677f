"""timm in a process of its own: a folder as the hub has it, or an architecture by name and a state dict.

python -m vitral.weights.oracles.timm FOLDER
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vitral.weights.oracles.torchvision_stub import import_beside_torchvision
from vitral.weights.oracles.worker import Runner, answer


def load_library() -> Any:
    """timm itself."""
    return import_beside_torchvision("timm")


def open_model(timm: Any, request: Mapping[str, Any]) -> Runner:
    """A model as a user of timm would open it: `local-dir:FOLDER`, or by name with every tensor of the file."""
    if "folder" in request:
        model = timm.create_model(f"local-dir:{request['folder']}", pretrained=True)
    else:
        model = timm.create_model(request["arch"], pretrained=False, **request["arguments"])
        model.load_state_dict(import_module("safetensors.torch").load_file(request["file"]), strict=True)
    model.eval()

    def run(images: Any) -> dict[str, Any]:
        tokens = model.forward_features(images)
        return {"tokens": tokens, "logits": model.forward_head(tokens) if model.num_classes else None}

    return run


if __name__ == "__main__":
    answer("timm", load_library, open_model)
