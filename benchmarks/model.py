"""The model against its peers: training steps and eager inference, float32, all with the same GELU."""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compare import Case
from vitral.core.config import Size
from vitral.core.machine import keep_freed_memory
from vitral.models import Attention, LinearHead, Mlp, Patches, Vit
from vitral.weights.oracles.torchvision_stub import stub_torchvision


class Shape(NamedTuple):
    """The same model in every library."""

    image: int
    patch: int
    width: int
    depth: int
    heads: int
    classes: int


SMALL, TINY, MEDIUM = Shape(32, 4, 192, 6, 3, 10), Shape(224, 16, 192, 12, 3, 1000), Shape(224, 16, 384, 12, 6, 1000)


class Engine(NamedTuple):
    """A library, with or without what is not the model: the fused AdamW and the memory that is kept."""

    library: Literal["vitral", "timm", "huggingface", "vit-pytorch"]
    tuned: bool
    activation: Literal["gelu", "gelu_tanh"] = "gelu"  # ours alone has a choice: the others have gelu


CONTENDERS = {
    "vitral": Engine("vitral", tuned=True),
    "timm": Engine("timm", tuned=False),
    "huggingface": Engine("huggingface", tuned=False),
    "vit-pytorch": Engine("vit-pytorch", tuned=False),
}
# There to be seen, not to be beaten: our default GELU, ours untuned, and what is left of the lead over tuned peers.
BESIDE = {
    "vitral tanh": Engine("vitral", tuned=True, activation="gelu_tanh"),
    "vitral plain": Engine("vitral", tuned=False),
    "timm tuned": Engine("timm", tuned=True),
    "huggingface tuned": Engine("huggingface", tuned=True),
    "vit-pytorch tuned": Engine("vit-pytorch", tuned=True),
}
PEERS = tuple(name for name in CONTENDERS if name != "vitral")
Verb = Literal["train", "infer"]


def case(name: str, images: int, goal: float, steps: int = 1) -> Case:
    return Case(name, images, goal, (*CONTENDERS, "vitral tanh"), PEERS, steps)


WORK: dict[Case, tuple[Verb, Shape]] = {
    case("train 32x32 p4 w192 d6, batch 64", images=64, goal=1.2, steps=2): ("train", SMALL),
    case("train Ti/16, batch 16", images=16, goal=1.1): ("train", TINY),
    case("train S/16, batch 16", images=16, goal=1.1): ("train", MEDIUM),
    case("infer S/16, batch 1", images=1, goal=1.15, steps=10): ("infer", MEDIUM),
    case("infer S/16, batch 8", images=8, goal=1.15, steps=2): ("infer", MEDIUM),
}
CASES = tuple(WORK)


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """One step of the case. Peers run as their users run them; ours as our training and prediction will run it."""
    torch.manual_seed(0)
    (verb, shape), chosen = WORK[case], (CONTENDERS | BESIDE)[engine]
    if chosen.tuned:
        keep_freed_memory()
    model = build(shape, chosen)
    images = torch.randn(case.images, 3, shape.image, shape.image)
    if verb == "infer":
        return partial(infer, model.eval(), images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=chosen.tuned or None)
    labels = torch.randint(shape.classes, (case.images,))
    return partial(train, model.train(), images, labels, optimizer)


@torch.inference_mode()
def infer(model: nn.Module, images: Tensor) -> None:
    model(images)


def train(model: nn.Module, images: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer) -> None:
    answer = model(images)
    logits = answer if isinstance(answer, Tensor) else answer.logits  # (B, classes); transformers wraps them
    F.cross_entropy(logits, labels).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def build(shape: Shape, engine: Engine) -> nn.Module:
    match engine.library:
        case "vitral":
            return build_vitral(shape, engine)
        case "timm":
            return build_timm(shape)
        case "huggingface":
            return build_huggingface(shape)
        case "vit-pytorch":
            return build_vit_pytorch(shape)


def build_vitral(shape: Shape, engine: Engine) -> nn.Module:
    config = Vit(
        image_size=Size(shape.image, shape.image),
        width=shape.width,
        depth=shape.depth,
        stem=Patches(patch=Size(shape.patch, shape.patch)),
        mixer=Attention(heads=shape.heads),
        mlp=Mlp(activation=engine.activation),
        head=LinearHead(num_classes=shape.classes),
    )
    return config.build()


def build_timm(shape: Shape, any_size: bool = False) -> nn.Module:
    stub_torchvision()
    timm = import_module("timm.models.vision_transformer")
    model = timm.VisionTransformer(
        img_size=shape.image,
        patch_size=shape.patch,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.heads,
        num_classes=shape.classes,
        dynamic_img_size=any_size,
    )
    assert isinstance(model, nn.Module)
    return model


def build_huggingface(shape: Shape) -> nn.Module:
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = import_module("transformers")
    config = transformers.ViTConfig(
        image_size=shape.image,
        patch_size=shape.patch,
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        num_labels=shape.classes,
        hidden_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    model = transformers.ViTForImageClassification(config)
    assert isinstance(model, nn.Module)
    return model


def build_vit_pytorch(shape: Shape) -> nn.Module:
    stub_torchvision()
    model = import_module("vit_pytorch").ViT(
        image_size=shape.image,
        patch_size=shape.patch,
        dim=shape.width,
        depth=shape.depth,
        heads=shape.heads,
        dim_head=shape.width // shape.heads,
        mlp_dim=4 * shape.width,
        num_classes=shape.classes,
    )
    assert isinstance(model, nn.Module)
    return model
