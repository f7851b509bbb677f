"""A run whose every step is the same for any number of processes: no chance but in the crops, which are counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from tests.data.loading.photos import photos
from tests.models.tiny import tiny_model
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Sequential
from vitral.data.samples import Samples
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.preprocessing import CENTERED
from vitral.tasks.classify import Classify
from vitral.training.callbacks import WeightAveraging
from vitral.training.checkpoints.state import SavedState, TrainingState, restore_state, saved_state, state_tensors
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import DistributedConfig, find_newest_for_all
from vitral.training.ema import Ema
from vitral.training.loop import (
    Callback,
    Communicator,
    Microbatch,
    MicrobatchConfig,
    Signals,
    StepResult,
    UpdateRule,
    mean_outcome,
    microbatches,
    train,
)
from vitral.training.optimizers import AdamW, Muon, OptimizerConfig, ScheduleFreeAdamW, build_average
from vitral.training.precision import Precision
from vitral.training.schedules import Cosine

CPU = torch.device("cpu")
STEPS = 20
CLIPS = {1: 1.0, 3: 1e9}  # by the number of portions: every gradient is cut, which would hide a wrong length, or none
# A larger epsilon than usual, or Adam would blow up the rounding of gradients that ought to be 0.
ADAMW = AdamW(lr=3e-3, eps=1e-4)
EXACT: tuple[OptimizerConfig, ...] = (  # tested in float64
    Muon(adamw_lr=3e-3, adamw_eps=1e-4),
    ScheduleFreeAdamW(lr=3e-2, eps=1e-4),
)
IMAGES, BATCH = 21, 4  # the sixth batch has one image, so one of two processes has none


@contextmanager
def float64() -> Iterator[None]:
    """Everything that is built and run here is in float64, also what is usually cast to float32."""
    torch.set_default_dtype(torch.float64)
    with patch.object(Tensor, "float", Tensor.double):
        yield
    torch.set_default_dtype(torch.float32)


class Logging(NamedTuple):
    """The job that notes every loss, accuracy and number of images."""

    lines: list[tuple[float, float, int]]

    def due(self, step: int, steps: int) -> bool:
        return True

    def run(self, step: int, result: StepResult) -> None:
        metrics, images, _ = result.read()
        self.lines.append((metrics["loss"], metrics["accuracy"], images))


class Race:
    """All parts of a run, new."""

    def __init__(
        self,
        samples: Samples,
        group: ProcessGroup,
        distributed: DistributedConfig,
        portions: int,
        optimizer: OptimizerConfig = ADAMW,
    ) -> None:
        items = samples.of("train")
        plan = SamplingPlan(np.array([item.label for item in items]), Sequential(), BATCH, 5, group.world)
        torch.manual_seed(0)
        model = tiny_model()
        task = Classify().build(model, 2, samples.counts("train"), CENTERED)
        self.group, self.dtype = group, torch.get_default_dtype()
        self.spread = distributed.build(task, group)
        schedule = Cosine(warmup=2)
        built = optimizer.build(task)
        average = build_average(Ema(decay=0.9), built, STEPS)
        self.learning = TrainingState(task, built, average, Precision(torch.float32, CPU))
        sight = ImagePipeline(Size(16, 16), Decoding(), RandomResizedCrop())
        self.loader = Loader(items, samples.store, sight, plan, workers=0, cache_bytes=2**20)
        self.serving = MicrobatchConfig(CENTERED, portions, CPU)
        self.descent = UpdateRule(
            self.learning.optimizer,
            lambda step: optimizer.lr * schedule.lr_factor(step, STEPS),
            CLIPS[portions],
            self.learning.precision,
            self.spread,
        )
        self.lines: list[tuple[float, float, int]] = []

    def resume(self, folder: Path) -> int:
        """Go back to the newest checkpoint, and give its step."""
        checkpoint = find_newest_for_all(folder, self.group).checkpoint
        assert checkpoint is not None
        tensors, state = self.spread.load_checkpoint(checkpoint)
        assert isinstance(state, dict)
        return restore_state(self.learning, self.loader.plan, tensors, SavedState.parse(state))

    def run(self, start: int, stop: int) -> "Race":
        """Take the steps from one up to another."""
        batches = (
            [portion._replace(images=portion.images.to(self.dtype)) for portion in portions]
            for portions in microbatches(self.loader, start, stop, self.serving)
        )
        jobs: list[Callback] = [WeightAveraging(self.learning), Logging(self.lines)]
        train(self.spread.module, batches, self.descent, start, stop, jobs)
        return self

    def evaluate(self) -> "Race":
        """Note what the averaged weights do on all images."""
        task, learning = self.learning.task, self.learning
        task.eval()
        with learning.average.applied_to(task), torch.no_grad():
            outcomes = [task(*portion[:2], portion.rng) for portion in self._portions()]
        task.train()
        outcome = self.group.reduce_outcome(mean_outcome(outcomes))
        Logging(self.lines).run(0, StepResult(0, outcome, Signals(), Communicator()))
        return self

    def _portions(self) -> Iterator[Microbatch]:
        for portions in microbatches(self.loader, 0, self.loader.plan.steps_per_epoch, self.serving):
            yield from portions

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint, and spoil the weights before it is on the disk: what was handed over is a copy."""
        writer = self.spread.checkpoint_writer(folder, 2)
        saved = saved_state(self.learning, self.loader.plan, step)
        writer.save(step, state_tensors(self.learning), saved.model_dump(mode="json"), None)
        for weight in self.learning.task.parameters():
            weight.data.zero_()
        writer.close()
        self.group.barrier()

    def weights(self) -> dict[str, Tensor]:
        """The whole model, by its own weights and by their averages."""
        own = {f"own/{name}": tensor for name, tensor in self.spread.full_state_dict(self.learning.task).items()}
        with self.learning.average.applied_to(self.learning.task):
            averaged = self.spread.full_state_dict(self.learning.task)
        return own | {f"averaged/{name}": tensor for name, tensor in averaged.items()}


def images(folder: Path) -> Samples:
    return photos(folder, train=IMAGES)
