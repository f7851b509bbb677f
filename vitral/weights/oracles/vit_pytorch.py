"""vit-pytorch in a separate process: a class of it, its arguments, and a state dict.

python -m vitral.weights.oracles.vit_pytorch FOLDER
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vitral.weights.oracles.torchvision_stub import import_beside_torchvision
from vitral.weights.oracles.worker import Answer, Runner, answer


def load_library() -> Any:
    """vit-pytorch itself."""
    return import_beside_torchvision("vit_pytorch")


def open_model(_library: Any, request: Mapping[str, Any]) -> Runner:
    """A model with every tensor of the file."""
    sizes = {name: tuple(each) if isinstance(each, list) else each for name, each in request["arguments"].items()}
    model = getattr(import_module(request["module"]), request["class"])(**sizes)
    model.load_state_dict(import_module("safetensors.torch").load_file(request["file"]), strict=True)
    model.eval()
    tokens: list[Any] = []
    model.transformer.register_forward_hook(lambda _part, _given, found: tokens.append(found))

    def run(images: Any) -> Answer:
        logits, found = model(images), tokens.pop()
        registers = len(getattr(model, "register_tokens", ()))  # which come last there, and first here
        found = found.roll(registers, dims=1)
        return Answer([found], logits if request["arguments"]["num_classes"] else None)

    return run


if __name__ == "__main__":
    answer("vit-pytorch", load_library, open_model)
