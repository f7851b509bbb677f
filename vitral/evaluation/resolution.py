"""Accuracy against the size of the images: how far a model may be stretched beyond the size it was trained with."""

from typing import Literal

import torch

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.evaluation.accuracy import Interval, compute_accuracy
from vitral.evaluation.outputs import eval_mode
from vitral.evaluation.subject import SubjectModel
from vitral.models.base import Grid

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the sides of the grid of patches
TOLERANCE = 0.02  # a smaller loss of accuracy is none


class SizeResult(Config):
    """The accuracy on images of one size."""

    image: Size
    grid: Size  # rows and columns of patches
    top1: float
    interval: Interval  # of top1
    trained: bool  # whether it is the size that the model was trained with


class ResolutionResult(Config):
    """The judgment over sizes, from small to large."""

    kind: Literal["resolution"] = "resolution"
    images: int
    rows: tuple[SizeResult, ...]
    smallest: Size  # from here ...
    largest: Size  # ... to here no size tried is more than 2 points below the trained one


class ResolutionEvaluator(Config):
    """The same images at half to twice the trained size; the model resamples its positions for each."""

    kind: Literal["resolution"] = "resolution"

    def check(self, subject: SubjectModel) -> None:
        """Find out before any long work whether the model takes another size at all."""
        subject.need_classes(self.kind)
        other = next((size for size in candidate_sizes(subject) if size != subject.trained), None)
        if other is None:
            return
        blank = torch.zeros(1, subject.bundle.model.channels, *other, device=subject.tools.device)  # (1, C, H, W)
        try:
            with torch.no_grad(), eval_mode(subject.model):
                subject.model.pooled(blank)
        except ConfigError as error:
            hint = "leave resolution out of --with: this model has one size"
            raise ConfigError(error.message, code=error.code, where=f"--with {self.kind}", hint=hint) from None

    def judge(self, subject: SubjectModel) -> ResolutionResult:
        rows = [evaluate_at(subject, size) for size in candidate_sizes(subject)]
        held = stable_range([row.top1 for row in rows], next(place for place, row in enumerate(rows) if row.trained))
        return ResolutionResult(
            images=len(subject.samples.of(subject.split)),
            rows=tuple(rows),
            smallest=rows[held.start].image,
            largest=rows[held.stop - 1].image,
        )


def candidate_sizes(subject: SubjectModel) -> list[Size]:
    """The sizes to try, small to large: whole numbers of what the stem cuts the image into."""
    image, grid = subject.trained, subject.bundle.model.layout(subject.trained).grid
    cell = Size(image.height // grid.rows, image.width // grid.columns)
    grids = [Grid(*(max(1, round(side * factor)) for side in grid)) for factor in FACTORS]
    return [Size(each.rows * cell.height, each.columns * cell.width) for each in dict.fromkeys(grids)]


def evaluate_at(subject: SubjectModel, image: Size) -> SizeResult:
    """The accuracy at a size."""
    found = compute_accuracy(subject.answers(image), subject.bundle.classes)
    grid = subject.bundle.model.layout(image).grid
    trained = image == subject.trained
    return SizeResult(image=image, grid=Size(*grid), top1=found.top1, interval=found.interval, trained=trained)


def stable_range(shares: list[float], own: int) -> range:
    """The unbroken run of places about one's own at which the share is not clearly below one's own."""
    holds = [share >= shares[own] - TOLERANCE for share in shares]
    below = [place for place in range(own) if not holds[place]]
    above = [place for place in range(own, len(holds)) if not holds[place]]
    return range(below[-1] + 1 if below else 0, above[0] if above else len(holds))
