"""Weights in a pickle of torch, for who asks for that by name: only tensors and plain values are taken out of it."""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.serialization import safe_globals

from vitral.core.errors import WeightsError
from vitral.core.storage import wrap_read_errors

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
COLORS = re.compile(r"\x1b\[[0-9;]*m")  # in which torch prints its advice
CODE = re.compile(r"GLOBAL (\S+)")  # how torch names what a pickle would have called
WRAPPERS = ("state_dict", "model", "teacher", "module", "model_state_dict", "state_dict_ema")  # around a state dict


def read_torch_pickle(path: Path) -> Mapping[str, Tensor]:
    """The tensors by name, from a state dict or from what training scripts wrap around one."""
    with wrap_read_errors(path):
        path.stat()
    try:
        # Training scripts of facebook keep their arguments beside the weights: a plain record, which runs nothing.
        with safe_globals([Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch tells of a bad file in many ways
        message = f"holds more than weights, or is damaged: {_said(error)}"
        code = "weights.unsafe_pickle" if CODE.search(str(error)) else "weights.corrupt"
        hint = "save its state dict as safetensors where it was made, and give that"
        raise WeightsError(message, code=code, where=path, hint=hint) from None
    while isinstance(found, dict) and (inner := [name for name in WRAPPERS if isinstance(found.get(name), dict)]):
        if len(inner) > 1:
            message = f"holds several sets of weights: {', '.join(inner)}"
            hint = "save the one that you want alone"
            raise WeightsError(message, code="weights.ambiguous", where=path, hint=hint)
        found = found[inner[0]]
    if not isinstance(found, dict) or not found:
        raise WeightsError("holds no tensors by name", code="weights.not_state_dict", where=path)
    others = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if others:
        message = f"holds {others[0]}{f' and {len(others) - 1} more' if len(others) > 1 else ''} beside its tensors"
        hint = "save its state dict alone"
        raise WeightsError(message, code="weights.not_state_dict", where=path, hint=hint)
    return {str(name): tensor for name, tensor in found.items()}


def _said(error: Exception) -> str:
    """What torch says of a file, but not its advice, which is to run what the file holds."""
    said = COLORS.sub("", str(error)).strip()
    if called := CODE.search(said):
        return f"it calls {called[1]}, which was not run"
    lines = [line for line in said.splitlines() if "weights_only" not in line]
    return lines[0] if lines else type(error).__name__
