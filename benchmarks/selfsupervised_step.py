"""Steps without labels: MAE beside supervised training of the same encoder, DINO and MoCo v3 beside lightly's.

A suite for `benchmarks.compare`, which `python -m benchmarks.selfsupervised` runs. Images are in memory; a step is the
forward pass, the backward pass, that of AdamW and of the teacher, in float32. The heads have the authors' sizes.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.compare import Case
from benchmarks.model import MEDIUM, build_timm
from vitral.core.config import override
from vitral.core.machine import keep_freed_memory
from vitral.data.loading.loader import BatchImages
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.hooks import FlopCounter
from vitral.models.registry import model_config
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.dino import Dino
from vitral.tasks.selfsupervised.mae import Mae
from vitral.tasks.selfsupervised.moco_v3 import MocoV3
from vitral.tasks.task import Task
from vitral.weights.oracles.torchvision_stub import stub_torchvision

OURS, SUPERVISED = "vitral", "supervised"
LIGHTLY, LIGHTLY_OURS = "lightly", "lightly, our ViT"  # with timm's ViT of the same shape, and with ours
CLASSES = 1000
LARGE, LOCAL, SMALL_VIEWS = 224, 96, 8  # of DINO
MOMENTUM = 0.99
OUTPUTS, HIDDEN, BOTTLENECK = 65536, 2048, 256  # of DINO's head
MOCO_HIDDEN, MOCO_OUTPUTS, TEMPERATURE = 4096, 256, 0.2


class Method(NamedTuple):
    """A task, and the model that it trains."""

    model: str
    task: TaskConfig


MAE_GOAL = 1.15  # times the ratio of multiply-adds is what a step may take
MAE_CASES = {
    Case(f"MAE {name}, batch 4", images=4, goal=1 / MAE_GOAL, engines=(OURS, SUPERVISED), rivals=(SUPERVISED,)): Method(
        name, Mae()
    )
    for name in ("B/16", "L/16")
}
RIVALS = (LIGHTLY, LIGHTLY_OURS)
LIGHTLY_CASES = {
    Case("DINO S/16, 2 and 8 views, batch 8", 8, 1.2, (OURS, *RIVALS), RIVALS): Method("S/16", Dino()),
    Case("MoCo v3 S/16, batch 16", 16, 1.2, (OURS, *RIVALS), RIVALS): Method("S/16", MocoV3()),
}
WORK = MAE_CASES | LIGHTLY_CASES
CASES = tuple(WORK)


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """A step of an engine."""
    torch.manual_seed(0)
    method = WORK[case]
    images = make_views(method.task, case.images)
    if engine in RIVALS:
        learner = LightlyDino(engine) if isinstance(method.task, Dino) else LightlyMoco(engine)
        optimizer = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], lr=1e-4)
        return partial(lightly_step, learner, images, optimizer)
    keep_freed_memory()
    task = build(method, engine)
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=1e-4, fused=True)
    return partial(step, task, images, torch.randint(CLASSES, (case.images,)), optimizer)


def make_views(task: TaskConfig, count: int) -> BatchImages:
    """Images (B, C, H, W), or the views of a task: (B, V, C, H, W) of each size."""
    large = torch.randn(count, max(1, task.views), 3, LARGE, LARGE)
    if isinstance(task, Dino):
        return large, torch.randn(count, SMALL_VIEWS, 3, LOCAL, LOCAL)
    return (large,) if task.views > 1 else large[:, 0]


def build(method: Method, engine: str) -> Task:
    """Our task for the model, or its supervised training."""
    config: TaskConfig = Classify() if engine == SUPERVISED else method.task
    model = override(
        model_config(method.model), [f"head.num_classes={CLASSES}"] if engine == SUPERVISED else ["head=none"]
    )
    return config.build(model.build(), CLASSES, [1] * CLASSES, CENTERED).train()


def step(task: Task, images: BatchImages, labels: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """A step as the loop takes it."""
    task.begin_step(0.5)
    task(images, labels, np.random.default_rng(0)).loss.backward()
    task.filter_gradients()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    task.end_step(0.5)


def multiply_adds(method: Method, engine: str) -> int:
    """Counted multiply-adds of the forward pass of an image; those of a step are three times as many."""
    task = build(method, engine)
    with FlopCounter([]) as counter:
        task(make_views(method.task, 1), torch.zeros(1, dtype=torch.int64), np.random.default_rng(0))
    return counter.multiply_adds


def build_backbone(engine: str) -> nn.Module:
    """A ViT from images to class tokens: timm's, as users of lightly have it, or ours."""
    if engine == LIGHTLY_OURS:
        return override(model_config("S/16"), ["head=none"]).build()
    return build_timm(MEDIUM._replace(classes=0), any_size=True)


def follow(student: Sequence[nn.Module], teacher: Sequence[nn.Module]) -> None:
    """The momentum update by lightly's function."""
    update = import_module("lightly.models.utils").update_momentum
    for own, other in zip(student, teacher, strict=True):
        update(own, other, m=MOMENTUM)


class LightlyDino(nn.Module):
    """DINO of lightly's parts, put together as in its example."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        stub_torchvision()
        heads, losses = import_module("lightly.models.modules.heads"), import_module("lightly.loss.dino_loss")
        head = partial(heads.DINOProjectionHead, MEDIUM.width, HIDDEN, BOTTLENECK, OUTPUTS, norm_last_layer=True)
        self.backbone, self.head = build_backbone(engine), head()
        self.teacher, self.teacher_head = deepcopy(self.backbone).requires_grad_(False), head().requires_grad_(False)
        self.loss = losses.DINOLoss(output_dim=OUTPUTS)

    def forward(self, views: tuple[Tensor, ...]) -> Tensor:
        follow((self.backbone, self.head), (self.teacher, self.teacher_head))
        large, small = (group.unbind(dim=1) for group in views)
        with torch.no_grad():
            taught = [self.teacher_head(self.teacher(view)) for view in large]
        return self.loss(taught, [self.head(self.backbone(view)) for view in (*large, *small)])


class LightlyMoco(nn.Module):
    """MoCo v3 of lightly's parts, with its contrastive loss of two views."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        stub_torchvision()
        heads, losses = import_module("lightly.models.modules.heads"), import_module("lightly.loss.ntx_ent_loss")
        head = partial(heads.MoCoProjectionHead, hidden_dim=MOCO_HIDDEN, output_dim=MOCO_OUTPUTS, batch_norm=True)
        self.backbone, self.projection = build_backbone(engine), head(MEDIUM.width, num_layers=3)
        self.prediction = head(MOCO_OUTPUTS, num_layers=2)
        self.teacher, self.keys = deepcopy(self.backbone).requires_grad_(False), deepcopy(self.projection)
        self.keys.requires_grad_(False)
        stem: Any = self.backbone.stem if engine == LIGHTLY_OURS else self.backbone.patch_embed
        stem.requires_grad_(False)  # as ours and the authors' are
        self.loss = losses.NTXentLoss(temperature=TEMPERATURE)

    def forward(self, views: tuple[Tensor, ...]) -> Tensor:
        follow((self.backbone, self.projection), (self.teacher, self.keys))
        both = views[0].unbind(dim=1)
        queries = [self.prediction(self.projection(self.backbone(view))) for view in both]
        with torch.no_grad():
            keys = [self.keys(self.teacher(view)) for view in both]
        return self.loss(queries[0], keys[1]) + self.loss(queries[1], keys[0])


def lightly_step(learner: nn.Module, images: BatchImages, optimizer: torch.optim.Optimizer) -> None:
    """A step as lightly's examples take it."""
    learner(images).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
