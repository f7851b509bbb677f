"""Accuracy against image size: how far from the training size a model still works."""

from typing import Literal

import torch

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.evaluation.accuracy import Interval, compute_accuracy
from vitral.evaluation.subject import SubjectModel
from vitral.models.base import Grid
from vitral.models.hooks import eval_mode

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the patch grid's sides
TOLERANCE = 0.02  # largest loss of accuracy that counts as none


class SizeResult(Config):
    """The accuracy at one image size."""

    image_size: Size
    grid: Size  # rows and columns of patches
    top1: float
    ci95: Interval  # of top1
    is_train_size: bool  # whether the model was trained at this size


class ResolutionResult(Config):
    """The accuracy by image size, from small to large."""

    kind: Literal["resolution"] = "resolution"
    images: int
    rows: tuple[SizeResult, ...]
    min_size: Size  # no size between these two ...
    max_size: Size  # ... loses more than 2 points against the training size


class ResolutionEvaluator(Config):
    """Evaluates the images at half to twice the training size; position embeddings are resampled."""

    kind: Literal["resolution"] = "resolution"

    def check(self, subject: SubjectModel) -> None:
        """Check with one forward pass that the model takes other sizes."""
        subject.check_classes(self.kind)
        other = next((size for size in candidate_sizes(subject) if size != subject.train_size), None)
        if other is None:
            return
        blank = torch.zeros(1, subject.bundle.model.channels, *other, device=subject.context.device)  # (1, C, H, W)
        try:
            with torch.no_grad(), eval_mode(subject.model):
                subject.model.forward_pooled(blank)
        except ConfigError as error:
            hint = "remove resolution from --with: this model takes one size only"
            raise ConfigError(error.message, code=error.code, where=f"--with {self.kind}", hint=hint) from None

    def evaluate(self, subject: SubjectModel) -> ResolutionResult:
        rows = [evaluate_at(subject, size) for size in candidate_sizes(subject)]
        own = next(index for index, row in enumerate(rows) if row.is_train_size)
        stable = stable_range([row.top1 for row in rows], own)
        return ResolutionResult(
            images=len(subject.samples.of(subject.split)),
            rows=tuple(rows),
            min_size=rows[stable.start].image_size,
            max_size=rows[stable.stop - 1].image_size,
        )


def candidate_sizes(subject: SubjectModel) -> list[Size]:
    """The sizes to evaluate, from small to large: multiples of the patch size."""
    grid, token = subject.bundle.model.layout(subject.train_size).grid, subject.bundle.model.token_size()
    grids = [Grid(*(max(1, round(side * factor)) for side in grid)) for factor in FACTORS]
    return [Size(each.rows * token.height, each.columns * token.width) for each in dict.fromkeys(grids)]


def evaluate_at(subject: SubjectModel, image: Size) -> SizeResult:
    """The accuracy at an image size."""
    accuracy = compute_accuracy(subject.predictions(image), subject.bundle.classes)
    grid = subject.bundle.model.layout(image).grid
    trained = image == subject.train_size
    return SizeResult(image_size=image, grid=Size(*grid), top1=accuracy.top1, ci95=accuracy.ci95, is_train_size=trained)


def stable_range(accuracies: list[float], own: int) -> range:
    """The largest range of indices around `own` whose accuracies are within the tolerance of its accuracy."""
    holds = [accuracy >= accuracies[own] - TOLERANCE for accuracy in accuracies]
    below = [index for index in range(own) if not holds[index]]
    above = [index for index in range(own, len(holds)) if not holds[index]]
    return range(below[-1] + 1 if below else 0, above[0] if above else len(holds))
