"""A toy run: a small model on a small folder of photos, with all that could make two runs differ."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tests.data.loading.photos import photos
from tests.models.tiny import tiny_model
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Shuffled
from vitral.data.samples import Samples
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.mixup import Mixup
from vitral.data.transforms.preprocessing import CENTERED
from vitral.tasks.classify import Classify
from vitral.training.callbacks import WeightAveraging
from vitral.training.checkpoints.checkpoint import find_newest, save_checkpoint
from vitral.training.checkpoints.state import SavedState, TrainingState, restore_state, saved_state, state_tensors
from vitral.training.ema import Ema
from vitral.training.loop import MicrobatchConfig, StepResult, UpdateRule, microbatches, train
from vitral.training.optimizers import AdamW, OptimizerConfig, build_average
from vitral.training.precision import Precision
from vitral.training.schedules import Cosine

CPU = torch.device("cpu")
EPOCHS = 3
ADAMW = AdamW(lr=1e-2)


class Logging(NamedTuple):
    """The job that notes every loss and accuracy."""

    lines: list[tuple[int, float, float]]

    def due(self, step: int, steps: int) -> bool:
        return True

    def run(self, step: int, result: StepResult) -> None:
        metrics = result.read().metrics
        self.lines.append((step, metrics["loss"], metrics["accuracy"]))


class Toy:
    """All parts of a run, new, and resumed from the folder if there is a checkpoint."""

    def __init__(
        self, samples: Samples, folder: Path, portions: int, workers: int, optimizer: OptimizerConfig = ADAMW
    ) -> None:
        items = samples.of("train")
        plan = SamplingPlan(np.array([item.label for item in items]), Shuffled(), 4, seed=5)
        sight = ImagePipeline(Size(16, 16), Decoding(), RandomResizedCrop())
        torch.manual_seed(0)
        model = tiny_model(0.2)
        task = Classify(mixing=Mixup(alpha=0.5)).build(model, 2, samples.counts("train"), CENTERED)
        self.folder, self.steps = folder, EPOCHS * plan.steps_per_epoch
        schedule = Cosine(warmup=2)
        built = optimizer.build(task)
        average = build_average(Ema(decay=0.9), built, self.steps)
        self.learning = TrainingState(task, built, average, Precision(torch.float32, CPU))
        self.loader = Loader(items, samples.store, sight, plan, workers, cache_bytes=2**20)
        self.serving = MicrobatchConfig(CENTERED, portions, CPU)
        self.descent = UpdateRule(
            self.learning.optimizer,
            lambda step: optimizer.lr * schedule.lr_factor(step, self.steps),
            1.0,
            self.learning.precision,
        )
        self.lines: list[tuple[int, float, float]] = []

    def run(self, stop: int) -> None:
        """Go on from the newest checkpoint up to a step, and save there."""
        found = find_newest(self.folder).checkpoint
        start = 0
        if found is not None:
            tensors, state = found.load()
            assert isinstance(state, dict)
            start = restore_state(self.learning, self.loader.plan, tensors, SavedState.parse(state))
        batches = microbatches(self.loader, start, stop, self.serving)
        train(
            self.learning.task,
            batches,
            self.descent,
            start,
            stop,
            [WeightAveraging(self.learning), Logging(self.lines)],
        )
        saved = saved_state(self.learning, self.loader.plan, stop)
        save_checkpoint(
            self.folder, stop, state_tensors(self.learning), saved.model_dump(mode="json"), keep=1, best=None
        )

    def bits(self) -> dict[str, bytes]:
        """Every byte of the state."""
        groups = state_tensors(self.learning)
        return {
            f"{group}/{name}": tensor.numpy().tobytes() for group in groups for name, tensor in groups[group].items()
        }


def small_set(folder: Path) -> Samples:
    return photos(folder, train=11)
