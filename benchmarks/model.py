"""The model against its peers: training steps and eager inference, float32, all with the same GELU."""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.race import Case
from benchmarks.stand_in import stand_in_for_torchvision
from vitral.config import Size
from vitral.model import Attention, LinearHead, Mlp, Patches, Vit
from vitral.model.allocator import keep_freed_memory


class Shape(NamedTuple):
    """The same model in every library."""

    image: int
    patch: int
    width: int
    depth: int
    heads: int
    classes: int


SHAPES = {
    "32x32 p4 w192 d6": Shape(32, 4, 192, 6, 3, 10),
    "Ti/16": Shape(224, 16, 192, 12, 3, 1000),
    "S/16": Shape(224, 16, 384, 12, 6, 1000),
}
CASES = (
    Case("train 32x32 p4 w192 d6, batch 64", images=64, goal=1.2, steps=2),
    Case("train Ti/16, batch 16", images=16, goal=1.1),
    Case("train S/16, batch 16", images=16, goal=1.1),
    Case("infer S/16, batch 1", images=1, goal=1.15, steps=10),
    Case("infer S/16, batch 8", images=8, goal=1.15, steps=2),
)
PEERS = ("timm", "huggingface", "vit-pytorch")
ENGINES = ("vitral", *PEERS)
# There to be seen, not to be beaten: what is left of the lead when peers get all that is not the model.
BESIDE = ("vitral plain", "vitral tanh", *(f"{peer} tuned" for peer in PEERS))


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """One step of the case.

    Peers run as their users run them. Ours keeps freed memory and has the fused AdamW, as `vitral train` and
    `vitral predict` do; `plain` is ours without these two, `tuned` a peer with them, `tanh` ours with the default GELU.
    """
    torch.manual_seed(0)
    verb, rest = case.name.split(" ", 1)
    name = rest.rsplit(", batch", 1)[0]
    library, _, option = engine.partition(" ")
    tuned = option == "tuned" or (library == "vitral" and option != "plain")
    if tuned:
        keep_freed_memory()
    shape = SHAPES[name]
    model, answer = BUILDERS[library](shape, option)
    images = torch.randn(case.images, 3, shape.image, shape.image)
    if verb == "infer":
        return partial(infer, model.eval(), answer, images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned or None)
    labels = torch.randint(shape.classes, (case.images,))
    return partial(train, model.train(), answer, images, labels, optimizer)


Answer = Callable[[Any], Tensor]


@torch.inference_mode()
def infer(model: nn.Module, answer: Answer, images: Tensor) -> None:
    answer(model(images))


def train(model: nn.Module, answer: Answer, images: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(answer(model(images)), labels).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def logits(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result.logits


def build_vitral(shape: Shape, option: str) -> tuple[nn.Module, Answer]:
    config = Vit(
        image=Size(shape.image, shape.image),
        width=shape.width,
        depth=shape.depth,
        stem=Patches(patch=Size(shape.patch, shape.patch)),
        mixer=Attention(heads=shape.heads),
        mlp=Mlp(gelu="tanh" if option == "tanh" else "erf"),
        head=LinearHead(classes=shape.classes),
    )
    return config.build(), logits


def build_timm(shape: Shape, option: str) -> tuple[nn.Module, Answer]:
    stand_in_for_torchvision()
    timm = import_module("timm.models.vision_transformer")
    model = timm.VisionTransformer(
        img_size=shape.image,
        patch_size=shape.patch,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.heads,
        num_classes=shape.classes,
    )
    return model, logits


def build_huggingface(shape: Shape, option: str) -> tuple[nn.Module, Answer]:
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
    return transformers.ViTForImageClassification(config), logits


def build_vit_pytorch(shape: Shape, option: str) -> tuple[nn.Module, Answer]:
    stand_in_for_torchvision()
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
    return model, logits


BUILDERS: dict[str, Callable[[Shape, str], tuple[nn.Module, Answer]]] = {
    "vitral": build_vitral,
    "timm": build_timm,
    "huggingface": build_huggingface,
    "vit-pytorch": build_vit_pytorch,
}
