"""torchvision in a separate process: the arguments of its VisionTransformer, and a state dict.

python -m vitral.weights.oracles.torchvision FOLDER
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vitral.weights.oracles.torchvision_stub import import_torchvision
from vitral.weights.oracles.worker import Answer, Runner, answer


def load_library() -> Any:
    """The module of torchvision with the Vision Transformer."""
    return import_torchvision("torchvision.models.vision_transformer")


def open_model(code: Any, request: Mapping[str, Any]) -> Runner:
    """A model with every tensor of the file."""
    model = code.VisionTransformer(**request["arguments"])
    model.load_state_dict(import_module("safetensors.torch").load_file(request["file"]), strict=True)
    model.eval()
    tokens: list[Any] = []
    model.encoder.register_forward_hook(lambda _part, _given, found: tokens.append(found))

    def run(images: Any) -> Answer:
        logits = model(images)
        return Answer([tokens.pop()], logits)

    return run


if __name__ == "__main__":
    answer("torchvision", load_library, open_model)
