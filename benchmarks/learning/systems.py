"""Each system as a function that trains for a number of steps on one thread.  B images, C channels, H height, W width.

The peers have the width, depth, heads and MLP ratio of our recipe for the dataset and patches of 4 pixels, so that all
are of about equal size; CCT has its authors' shapes. The images are in memory and get the crops of our recipe a batch
at a time, which costs the peers less than their own transforms would.
"""

import math
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.learning.cells import Cell
from benchmarks.stepwise_run import StepwiseRun
from vitral.data.datasets.arrays import ArrayStore
from vitral.data.samples import Samples, Split
from vitral.data.transforms.crop import RandomCrop, RandomResizedCrop
from vitral.models.attention import Attention
from vitral.models.mlp import Mlp
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe
from vitral.runs.request import RunRequest, resolve
from vitral.training.metrics import read_metrics
from vitral.training.optimizers.muon import Muon
from vitral.weights.oracles.torchvision_stub import import_beside_torchvision

HELD_OUT = 0.1
BATCH = 128
PATCH = 4
PEER_RATE = 1e-3  # of AdamW at a batch of 128, before the search
WARMUP = 0.05
SMOOTHING = 0.1  # timm's and CCT's
CCT_SHAPES = {"fashion-mnist": "cct_2", "cifar10": "cct_4"}  # of the authors' small models, with two convolutions


class Trained(NamedTuple):
    """What a run took and what it learned."""

    cpu_seconds: float  # of training, without the test at its end
    accuracy: float
    parameters: int


class Images(NamedTuple):
    """Images as bytes, (images, C, H, W), and their labels."""

    pixels: Tensor
    labels: Tensor


class Problem(NamedTuple):
    """What every system gets of a cell."""

    cell: Cell
    recipe: Recipe  # ours, for the data, the normalization and the shape of the model
    samples: Samples

    @property
    def model(self) -> Vit:
        assert isinstance(self.recipe.model, Vit)
        return self.recipe.model

    def images(self, split: Split) -> Images:
        """One split in memory."""
        assert isinstance(self.samples.store, ArrayStore)
        items = self.samples.of(split)
        found = self.samples.store.rows(item.name for item in items)
        assert found is not None
        pixels, rows = found
        return Images(
            torch.from_numpy(pixels[rows]).permute(0, 3, 1, 2).contiguous(),
            torch.tensor([item.label for item in items]),
        )

    def normalize(self, pixels: Tensor) -> Tensor:
        return self.recipe.images.normalize.apply(pixels)


def open_problem(cell: Cell, root: str, steps: int) -> Problem:
    """Our default recipe for the dataset, with so many steps, the rate of the cell and one evaluation, at the end."""
    settings: dict[str, Any] = {
        "device": "cpu",
        "workers": 0,
        "threads": 1,
        "root": root,
        "steps": steps,
        "seed": cell.seed,
    }
    if cell.split == "val":
        settings["hold_out"] = HELD_OUT
    recipe, samples, *_ = resolve(RunRequest(cell.dataset, settings=settings))
    scaled = {"lr": recipe.optimizer.lr * cell.rate}
    if isinstance(recipe.optimizer, Muon):
        scaled["adamw_lr"] = recipe.optimizer.adamw_lr * cell.rate
    optimizer = recipe.optimizer.model_copy(update=scaled)
    return Problem(cell, recipe.model_copy(update={"optimizer": optimizer, "eval_every": 1e6}), samples)


def train_vitral(problem: Problem, steps: int) -> Trained:
    """A run as any user's, with its record, averaging and checkpoints."""
    run = StepwiseRun(problem.recipe, problem.samples)
    try:
        started = time.process_time()
        run.take(steps - 1)
        spent = time.process_time() - started
        run.take(1)  # with the evaluation
        values = [line.values for line in read_metrics(run.folder.path) if line.split == problem.cell.split]
        return Trained(spent, values[-1]["accuracy"], _count(problem.model.build()))
    finally:
        run.close()


def shift_and_flip(pixels: Tensor, most: int, flip: bool) -> Tensor:
    """Each image (B, C, H, W) moved by up to `most` pixels, zeros coming in, and mirrored half of the time."""
    size, (height, width) = len(pixels), pixels.shape[-2:]
    padded = F.pad(pixels, (most, most, most, most))
    down, right = torch.randint(0, 2 * most + 1, (2, size, 1))  # each (B, 1)
    rows, columns = down + torch.arange(height), right + torch.arange(width)  # (B, H), (B, W)
    if flip:
        columns = torch.where(torch.rand(size, 1) < 0.5, columns.flip(1), columns)
    images = torch.arange(size)[:, None, None]
    return padded[images, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)  # (B, C, H, W)


def crop_and_flip(pixels: Tensor, area: tuple[float, float], aspect: tuple[float, float], flip: bool) -> Tensor:
    """A random part of each image (B, C, H, W) at its full size, mirrored half of the time."""
    size = len(pixels)
    share = torch.empty(size).uniform_(*area)
    ratio = torch.empty(size).uniform_(*map(math.log, aspect)).exp()
    width, height = (share * ratio).sqrt().clamp(max=1), (share / ratio).sqrt().clamp(max=1)  # of the image
    right, down = (torch.rand(size) * 2 - 1) * (1 - width), (torch.rand(size) * 2 - 1) * (1 - height)
    if flip:
        width = torch.where(torch.rand(size) < 0.5, -width, width)
    zeros = torch.zeros(size)
    boxes = torch.stack([width, zeros, right, zeros, height, down], dim=1).unflatten(1, (2, 3))  # (B, 2, 3)
    places = F.affine_grid(boxes, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels.float(), places, padding_mode="border", align_corners=False)  # (B, C, H, W)


def augment(problem: Problem, pixels: Tensor) -> Tensor:
    """A batch as the peers are trained on it: with the crops of our recipe."""
    crop = problem.recipe.images.crop
    if isinstance(crop, RandomResizedCrop):
        return problem.normalize(crop_and_flip(pixels, crop.area, crop.aspect, crop.flip))
    assert isinstance(crop, RandomCrop)
    return problem.normalize(shift_and_flip(pixels, crop.padding, crop.flip))


def batches(images: Images) -> Iterator[Images]:
    """Batches of one shuffled epoch after the other, without end."""
    while True:
        for rows in torch.randperm(len(images.labels)).split(BATCH):
            yield Images(images.pixels[rows], images.labels[rows])


def train_plainly(problem: Problem, steps: int, model: nn.Module, smoothing: float, weight_decay: float) -> Trained:
    """AdamW, a warm-up and a cosine, as the examples of these libraries have it."""
    rate = PEER_RATE * problem.cell.rate
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=weight_decay, fused=True)
    warm = max(1, round(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / warm, total_iters=warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warm)),
        ],
        [warm],
    )
    stream = batches(problem.images("train"))
    model.train()
    started = time.process_time()
    for _ in range(steps):
        some = next(stream)
        loss = F.cross_entropy(model(augment(problem, some.pixels)), some.labels, label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return _tested(problem, model, time.process_time() - started)


def train_timm(problem: Problem, steps: int) -> Trained:
    shape = problem.model
    model = import_beside_torchvision("timm").models.vision_transformer.VisionTransformer(
        img_size=tuple(shape.image_size),
        patch_size=PATCH,
        in_chans=shape.channels,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=_heads(shape),
        mlp_ratio=_mlp_ratio(shape),
        num_classes=len(problem.samples.classes),
    )
    return train_plainly(problem, steps, model, SMOOTHING, weight_decay=0.05)


def train_vit_pytorch(problem: Problem, steps: int) -> Trained:
    shape = problem.model
    model = import_beside_torchvision("vit_pytorch").ViT(
        image_size=tuple(shape.image_size),
        patch_size=PATCH,
        channels=shape.channels,
        dim=shape.width,
        depth=shape.depth,
        heads=_heads(shape),
        dim_head=shape.width // _heads(shape),
        mlp_dim=round(shape.width * _mlp_ratio(shape)),
        num_classes=len(problem.samples.classes),
    )
    return train_plainly(problem, steps, model, smoothing=0.0, weight_decay=0.01)


def train_cct(problem: Problem, steps: int) -> Trained:
    shape = problem.model
    import_beside_torchvision("vit_pytorch")
    model = getattr(import_module("vit_pytorch.cct"), CCT_SHAPES[problem.cell.dataset])(
        img_size=tuple(shape.image_size),
        n_input_channels=shape.channels,
        n_conv_layers=2,
        kernel_size=3,
        stride=1,
        padding=1,
        pooling_kernel_size=3,
        pooling_stride=2,
        pooling_padding=1,
        num_classes=len(problem.samples.classes),
        positional_embedding="learnable",
    )
    return train_plainly(problem, steps, model, SMOOTHING, weight_decay=0.06)


def train_transformers(problem: Problem, steps: int) -> Trained:
    """The Trainer with its own optimizer and schedule."""
    shape, library = problem.model, import_module("transformers")
    config = library.ViTConfig(
        image_size=tuple(shape.image_size),
        patch_size=PATCH,
        num_channels=shape.channels,
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=_heads(shape),
        intermediate_size=round(shape.width * _mlp_ratio(shape)),
        num_labels=len(problem.samples.classes),
    )
    model = library.ViTForImageClassification(config)
    images = problem.images("train")

    def collate(rows: list[int]) -> dict[str, Tensor]:
        return {"pixel_values": augment(problem, images.pixels[rows]), "labels": images.labels[rows]}

    with TemporaryDirectory() as folder:
        arguments = library.TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            seed=problem.cell.seed,
            per_device_train_batch_size=BATCH,
            learning_rate=PEER_RATE * problem.cell.rate,
            warmup_steps=round(WARMUP * steps),
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            logging_steps=10**9,
        )
        trainer = library.Trainer(model, arguments, data_collator=collate, train_dataset=range(len(images.labels)))
        started = time.process_time()
        trainer.train()
        spent = time.process_time() - started
    return _tested(problem, _Logits(model), spent)


class _Logits(nn.Module):
    """A model of transformers that returns the tensor alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).logits


@torch.inference_mode()
def _tested(problem: Problem, model: nn.Module, spent: float) -> Trained:
    model.eval()
    images = problem.images("val" if problem.cell.split == "val" else "test")
    right = 0
    for pixels, labels in zip(images.pixels.split(500), images.labels.split(500), strict=True):
        right += int((model(problem.normalize(pixels)).argmax(dim=1) == labels).sum())
    return Trained(spent, right / len(images.labels), _count(model))


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _heads(shape: Vit) -> int:
    assert isinstance(shape.mixer, Attention)
    return shape.mixer.heads


def _mlp_ratio(shape: Vit) -> float:
    assert isinstance(shape.mlp, Mlp)
    return shape.mlp.ratio


TRAIN: dict[str, Callable[[Problem, int], Trained]] = {
    "vitral": train_vitral,
    "timm": train_timm,
    "vit-pytorch": train_vit_pytorch,
    "transformers": train_transformers,
    "cct": train_cct,
}
