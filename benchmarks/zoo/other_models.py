"""vit-pytorch and torchvision, whose files are bare state dicts: what tensors do not tell is given as settings."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.zoo.judge import Answers, Subject, float64
from benchmarks.zoo.random_weights import random_images, randomize, seed_of
from vitral.weights.oracles.torchvision_stub import import_torchvision

GROUPS = ("vit-pytorch", "vit-pytorch-others", "torchvision")  # the second are not plain, and must not open wrong
WAYS = ("settings", "bare")
BASE: dict[str, Any] = {"image_size": 32, "patch_size": 8, "dim": 64, "depth": 3, "num_classes": 7, "heads": 4}
LUCID = BASE | {"dim_head": 16, "mlp_dim": 96}
VISION: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 64}
VISION |= {"mlp_dim": 96, "num_classes": 7}


class Case(NamedTuple):
    """A class of another library, its arguments, and what its file does not tell."""

    module: str
    kind: str
    arguments: Mapping[str, Any]
    settings: Mapping[str, Any]
    sizes: tuple[tuple[int, int], ...] = ((32, 32),)


def lucid(module: str, kind: str, sizes: tuple[tuple[int, int], ...] = ((32, 32),), **more: Any) -> Case:
    arguments = LUCID | more
    heads = {"mixer.heads": arguments["heads"], "image_size": _text(arguments["image_size"])}
    pool = {"pool": "mean_all" if more.get("pool") == "mean" else "cls"} if kind != "SimpleViT" else {}
    patch = {"stem.patch": arguments["patch_size"]} if "channels" in more else {}  # which a square of 3 channels tells
    return Case(f"vit_pytorch.{module}", kind, arguments, heads | pool | patch, sizes)


def _text(size: int | tuple[int, int]) -> str:
    rows, columns = (size, size) if isinstance(size, int) else size
    return f"{rows}x{columns}"


CASES: dict[str, dict[str, Case]] = {
    "vit-pytorch": {
        "vit": lucid("vit", "ViT", sizes=((32, 32), (24, 32))),  # positions are sliced for shorter sequences
        "vit_mean": lucid("vit", "ViT", pool="mean"),
        "vit_wide": lucid("vit", "ViT", sizes=((32, 48),), image_size=(32, 48)),
        "vit_one_head": lucid("vit", "ViT", heads=1, dim_head=64),
        "vit_two_channels": lucid("vit", "ViT", channels=2),
        "simple_vit": lucid("simple_vit", "SimpleViT"),
        "simple_vit_registers": lucid("simple_vit_with_register_tokens", "SimpleViT", num_register_tokens=3),
        "simple_vit_qk_norm": lucid("simple_vit_with_qk_norm", "SimpleViT"),
        "simple_vit_patch_dropout": lucid("simple_vit_with_patch_dropout", "SimpleViT"),
        "simple_vit_flash": lucid("simple_flash_attn_vit", "SimpleViT"),
        "vit_patch_dropout": lucid("vit_with_patch_dropout", "ViT"),
    },
    "vit-pytorch-others": {
        "simple_vit_value_residual": lucid("simple_vit_with_value_residual", "SimpleViT"),
        "vit_parallel": lucid("parallel_vit", "ViT"),
        "vit_deep": lucid("deepvit", "DeepViT"),
        "vit_small_dataset": lucid("vit_for_small_dataset", "ViT"),
        "vit_decorr": lucid("vit_with_decorr", "ViT"),
        "vit_keel_post_ln": lucid("vit_with_keel_post_ln", "ViT"),
        "vit_patch_merger": lucid("vit_with_patch_merger", "ViT"),
    },
    "torchvision": {
        "vit": Case("torchvision.models.vision_transformer", "VisionTransformer", VISION, {"mixer.heads": 4}),
        "vit_representation": Case(
            "torchvision.models.vision_transformer",
            "VisionTransformer",
            VISION | {"representation_size": 48},
            {"mixer.heads": 4},
        ),
    },
}


def names(group: str) -> list[str]:
    return list(CASES[group])


def make(group: str, name: str, folder: Path) -> Subject:
    """Write a random model's state dict and ask the library what the model answers."""
    case, seed = CASES[group][name], seed_of(f"{group} {name}")
    torch.backends.mha.set_fastpath_enabled(False)
    import_torchvision("torchvision")
    build: Callable[..., Any] = getattr(import_module(case.module), case.kind)
    arguments = {key: value for key, value in case.arguments.items() if key in _accepted(build)}
    model = build(**arguments).eval()
    randomize(model, seed)
    tensors = {key: value.contiguous().clone() for key, value in model.state_dict().items()}
    path = folder / "model.safetensors"
    save_file(tensors, path)
    with float64():
        wide = build(**arguments).eval()
        wide.load_state_dict(tensors)
        channels = case.arguments.get("channels", 3)
        answers = [answer(wide, random_images(size, seed, channels)) for size in case.sizes]
    only = () if len(case.sizes) > 1 else ("one size only: the library's positions are fixed",)
    return Subject({"settings": (path, {"settings": dict(case.settings)}), "bare": (path, {})}, answers, only)


def _accepted(build: Any) -> set[str]:
    code = build.__init__.__code__
    return set((code.co_varnames)[: code.co_argcount + code.co_kwonlyargcount])


def answer(model: Any, images: Tensor) -> Answers:
    """Tokens of the encoder, before and after the norm that follows it, and logits."""
    caught: list[Tensor] = []
    encoder = model.transformer if hasattr(model, "transformer") else model.encoder
    hook = encoder.register_forward_hook(lambda part, given, found: caught.append(first(found)))
    logits = first(model(images))
    hook.remove()
    registers = len(model.register_tokens) if hasattr(model, "register_tokens") else 0
    tokens = caught[0].roll(registers, dims=1)  # the library has them after the patches, ours before
    definitions = {"after the encoder": tokens}
    head = getattr(model, "mlp_head", None) or getattr(model, "linear_head", None)
    if isinstance(head, torch.nn.Sequential) and isinstance(head[0], torch.nn.LayerNorm):
        definitions["after the head's norm"] = head[0](tokens)
    return Answers(images, definitions, logits)


def first(found: Any) -> Tensor:
    """What a part returns, without what it returns beside it for a loss."""
    return found[0] if isinstance(found, tuple) else found
