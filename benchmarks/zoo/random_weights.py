"""Random weights in which nothing is trivial: a wrong constant, order or missing tensor shows in the outputs."""

import zlib

import torch
from torch import Tensor, nn

SCALES = ("gamma", "lambda1", "layer_scale", "layerscale")  # of LayerScale, by a part of the name
FREQUENCIES = ("freqs", "periods", "bands", "inv_freq")  # of rotary positions
NORMS = ("norm", "ln_", "layernorm")


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Set every floating tensor of the state dict; activations stay of order one."""
    generator = torch.Generator().manual_seed(seed)
    roles = _weight_roles(model)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(random_tensor(name, tensor, roles.get(name, ""), generator))


def random_tensor(name: str, tensor: Tensor, role: str, generator: torch.Generator) -> Tensor:
    """Values for a tensor by its role: a norm's weight, LayerScale, frequencies, a bias, a table or a matrix."""
    noise = torch.randn(tensor.shape, generator=generator)
    last = name.rpartition(".")[2]
    if any(word in last for word in FREQUENCIES):
        return tensor.float().cpu() * (1 + 0.2 * noise.clamp(-2, 2))
    if any(word in name for word in SCALES) or last in {"scale", "q_scale", "k_scale"}:
        return 0.5 + 0.2 * noise.clamp(-2, 2)
    if role == "norm" or last == "running_var":
        return 1 + 0.2 * noise.clamp(-2, 2)
    if tensor.ndim < 2:
        return 0.2 * noise
    if role == "table" or not (last.endswith(("weight", "proj"))):  # positions, tokens, relative biases
        return 0.5 * noise
    fan_in = tensor[0].numel()
    return noise * fan_in**-0.5


def _weight_roles(model: nn.Module) -> dict[str, str]:
    """Which weights are of norms, by the class or the name of their module, and which are tables of embeddings."""
    roles = {}
    for name, part in model.named_modules():
        weight = getattr(part, "weight", None)
        words = f"{type(part).__name__} {name.rpartition('.')[2]}".lower()
        if isinstance(part, nn.Embedding):
            roles[f"{name}.weight"] = "table"
        elif isinstance(weight, Tensor) and weight.ndim == 1 and any(word in words for word in NORMS):
            roles[f"{name}.weight"] = "norm"
    return roles


def random_images(size: tuple[int, int], seed: int, channels: int = 3) -> Tensor:
    """One image of noise, in float64."""
    return torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
