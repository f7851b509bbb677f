"""Accuracy on changed images: each part is a set of curves.

B images of a batch, C channels, H rows, W columns, K classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError, DataError, suggest_choice
from vitral.core.files import read_file
from vitral.core.rng import Purpose, rng_for
from vitral.data.datasets.torch_dataset import gives_tensors
from vitral.data.decoding.pixels import Pixels
from vitral.data.samples import SPLITS, Item, Split
from vitral.evaluation.accuracy import Interval, wilson_interval
from vitral.evaluation.robustness.attacks import PATCH_BATCH, Forward, optimize_patch
from vitral.evaluation.robustness.conditions import (
    PARTS,
    Condition,
    Given,
    ImageBatch,
    Part,
    list_conditions,
    patch_sides,
)
from vitral.evaluation.robustness.corruption_error import ALEXNET, mean_corruption_error
from vitral.evaluation.robustness.corruptions import CORRUPTIONS, ConstantsName
from vitral.evaluation.subject import SubjectModel, match_labels
from vitral.models.hooks import eval_mode

HELD_OUT = 256  # images for patches and textures, at most
EXAMPLES = 2  # images that the page shows
SMALL = 64  # pixels of the shorter side up to which the constants of CIFAR-10-C are used
ALEXNET_NAME, ALEXNET_CLASSES = "alexnet", 1000
CHOOSE, HOLD = 900, 901  # what random orders of images are for


class RobustnessPoint(Config):
    """The accuracy under one condition."""

    x: float
    label: str
    top1: float


class RobustnessCurve(Config):
    """The accuracy under conditions of one kind. The first point of most is the unchanged images."""

    part: Part
    name: str
    points: tuple[RobustnessPoint, ...]

    def mean(self) -> float:
        """The mean accuracy, without the unchanged images."""
        return float(np.mean([point.top1 for point in self.points if point.x]))


class CorruptionSummary(Config):
    """The corruptions in one number."""

    constants: ConstantsName
    errors: dict[str, float]  # of each corruption, the mean of 5 severities
    mean_error: float
    mce: float | None  # relative to the reference; None without one
    relative_to: str  # the reference; empty without one


class RobustnessResult(Config):
    """Curves of accuracy against what was done to the images."""

    kind: Literal["robustness"] = "robustness"
    images: int
    images_in_split: int
    top1: float  # on the same images, unchanged
    ci95: Interval
    held_out: str  # the images that patches and textures are from; empty if none were needed
    curves: tuple[RobustnessCurve, ...]
    corruptions: CorruptionSummary | None
    page: str = ""  # the file of the page; empty without one

    def of(self, part: Part) -> tuple[RobustnessCurve, ...]:
        """The curves of a part."""
        return tuple(curve for curve in self.curves if curve.part == part)


class Picture(NamedTuple):
    """An example on the page."""

    condition: Condition
    pixels: Pixels  # (H, W, C)


class Examples(NamedTuple):
    """What the page shows: images as they are, and each of them under each condition."""

    plain: list[Pixels]
    changed: list[list[Picture]]  # by image


class RobustnessEvaluator(Config):
    """Evaluates images that are occluded, shuffled, without texture, attacked or corrupted."""

    kind: Literal["robustness"] = "robustness"
    images: Annotated[int, Field(ge=1)] = 1000  # at most, drawn by the seed; all attacks and corruptions are of each
    parts: tuple[Part, ...] = PARTS
    constants: ConstantsName | Literal["auto"] = "auto"  # of the corruptions; auto: cifar up to 64 pixels
    patch_steps: Annotated[int, Field(ge=1)] = 100  # of the optimization of each patch
    reference: str = ""  # of mCE: alexnet, or the JSON of an evaluation of another model
    page: str = ""  # a file for a page with pictures and curves

    def check(self, subject: SubjectModel) -> None:
        """Check the model, the images, the reference and the page before anything runs."""
        subject.check_classes(self.kind)
        where, channels = f"--with {self.kind}", subject.bundle.model.channels
        if channels not in {1, 3} or gives_tensors(subject.samples.store):
            message = "robustness needs images of levels from 0 to 255 in 1 or 3 channels"
            found = f"{channels} channels" if channels not in {1, 3} else "tensors that are normalized already"
            hint = "leave robustness out of --with"
            raise ConfigError(f"{message}, found {found}", code="config.unsupported", where=where, hint=hint)
        if not self.parts:
            message, hint = "no part given", suggest_choice("", PARTS)
            raise ConfigError(message, code="config.missing_value", where="--parts", hint=hint)
        if "corruptions" in self.parts:
            self._reference(subject)
        elif self.reference:
            message, hint = "a reference is for mCE, and corruptions are not evaluated", "add corruptions to --parts"
            raise ConfigError(message, code="config.conflict", where="--reference", hint=hint)
        if self.page and not Path(self.page).expanduser().absolute().parent.is_dir():
            message, hint = "the folder of the page does not exist", "create it, or choose another file"
            raise ConfigError(message, code="config.not_found", where=self.page, hint=hint)
        choose_images(subject, self.images, self._needs_held_out)

    @property
    def _needs_held_out(self) -> bool:
        return bool({"patch", "texture"} & set(self.parts))

    def _constants(self, image: Size) -> ConstantsName:
        if self.constants == "auto":
            return "cifar" if min(image) <= SMALL else "imagenet"
        return self.constants

    def evaluate(self, subject: SubjectModel) -> RobustnessResult:
        """All conditions of a batch before the next batch is read."""
        chosen = choose_images(subject, self.images, self._needs_held_out)
        with eval_mode(subject.model):
            given = self._given(subject, chosen.held_out)
            conditions = [each for part in self.parts for each in list_conditions(part, subject.train_size)]
            correct, examples = count_correct(subject, chosen.items, given, conditions, EXAMPLES if self.page else 0)
        count = len(chosen.items)
        result = RobustnessResult(
            images=count,
            images_in_split=len(subject.samples.of(subject.split)),
            top1=correct[None] / count,
            ci95=wilson_interval(correct[None], count),
            held_out=chosen.where if self._needs_held_out else "",
            curves=tuple(draw_curves(conditions, correct, count)),
            corruptions=None,
            page=self.page,
        )
        if "corruptions" in self.parts:
            result = result.model_copy(update={"corruptions": self._summary(subject, result)})
        if self.page:
            from vitral.evaluation.robustness.page import write_page

            write_page(Path(self.page).expanduser(), result, examples, subject)
        return result

    def _given(self, subject: SubjectModel, held_out: Sequence[Item]) -> Given:
        """The held-out images, and a patch of each size optimized on them."""
        forward, seed, steps = pixel_forward(subject), subject.context.seed, self.patch_steps
        activation = subject.model.activation
        styles, labels = load_images(subject, held_out)
        patches: dict[int, Tensor] = {}
        if "patch" in self.parts:
            device, sides = subject.context.device, patch_sides(subject.train_size)
            pixels, labels = (styles.float() / 255).to(device), labels.to(device)
            total = len(sides) * steps * min(PATCH_BATCH, len(styles))
            with subject.context.progress("optimizing patches", total) as advance:
                for side in sides:
                    patches[side] = optimize_patch(forward, pixels, labels, side, seed, activation, steps, advance)
        return Given(forward, activation, seed, self._constants(subject.train_size), styles, patches)

    def _summary(self, subject: SubjectModel, result: RobustnessResult) -> CorruptionSummary:
        errors = {curve.name: 1 - curve.mean() for curve in result.of("corruptions")}
        reference = self._reference(subject)
        name = "AlexNet on ImageNet-C" if self.reference == ALEXNET_NAME else self.reference
        return CorruptionSummary(
            constants=self._constants(subject.train_size),
            errors=errors,
            mean_error=float(np.mean(list(errors.values()))),
            mce=mean_corruption_error(errors, reference) if reference else None,
            relative_to=name,
        )

    def _reference(self, subject: SubjectModel) -> Mapping[str, float]:
        """The errors of the reference model; empty without one."""
        constants = self._constants(subject.train_size)
        if not self.reference:
            return {}
        if self.reference == ALEXNET_NAME:
            if len(subject.samples.classes) != ALEXNET_CLASSES or constants != "imagenet":
                message = "the errors of AlexNet are those on the 1,000 classes of ImageNet-C"
                hint = "give the JSON of a model on this data: vitral evaluate OTHER DATA --with robustness --json"
                raise ConfigError(message, code="config.conflict", where="--reference", hint=hint)
            return ALEXNET
        return read_reference(Path(self.reference).expanduser(), constants, subject)


def parse_parts(names: str) -> tuple[Part, ...]:
    """The parts that `occlusion,attack` names, in their usual order; all of them if none is named."""
    wanted = [name.strip() for name in names.split(",")] if names else list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        message, hint = f"unknown part {unknown[0]!r}", suggest_choice(unknown[0], PARTS)
        raise ConfigError(message, code="config.unknown_name", where="--parts", hint=hint)
    return tuple(part for part in PARTS if part in wanted)


class ChosenImages(NamedTuple):
    """The images that are evaluated, and others."""

    items: tuple[Item, ...]
    held_out: tuple[Item, ...]
    where: str  # the held-out images, in words


def choose_images(subject: SubjectModel, most: int, hold_out: bool) -> ChosenImages:
    """At most so many images of the split, and held-out ones: of train, else of another split, else of the same."""
    samples, seed = subject.samples, subject.context.seed
    own, others = samples.of(subject.split), [split for split in SPLITS if split != subject.split]
    if not hold_out:
        return ChosenImages(draw_items(own, most, seed, CHOOSE), (), "")
    other: Split | None = next((split for split in others if samples.of(split)), None)
    if other is not None:
        held = draw_items(samples.of(other), HELD_OUT, seed, HOLD)
        return ChosenImages(draw_items(own, most, seed, CHOOSE), held, f"{len(held):,} {other} images")
    if len(own) < 2:
        message = "robustness needs an image to optimize patches on beside those that are evaluated"
        hint = "use data with more images, or --parts without patch and texture"
        raise DataError(message, code="data.too_few", where=samples.where, hint=hint)
    held = draw_items(own, max(1, min(HELD_OUT, len(own) // 4)), seed, HOLD)
    taken = set(held)
    left = tuple(item for item in own if item not in taken)
    where = f"{len(held):,} {subject.split} images, which are not evaluated"
    return ChosenImages(draw_items(left, most, seed, CHOOSE), held, where)


def draw_items(items: tuple[Item, ...], most: int, seed: int, purpose: int) -> tuple[Item, ...]:
    """At most so many of the items, in their order."""
    if len(items) <= most:
        return items
    order = rng_for(seed, Purpose.ROBUSTNESS, purpose).permutation(len(items))[:most]
    return tuple(items[index] for index in sorted(order.tolist()))


def load_images(subject: SubjectModel, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Images (n, C, H, W), uint8, with the model's labels (n,)."""
    if not items:
        return torch.zeros(0, subject.bundle.model.channels, *subject.train_size, dtype=torch.uint8), torch.zeros(0)
    loader = subject.loader(items, subject.train_size)
    batches = list(loader.epoch())
    labels = match_labels(subject.samples, subject.bundle)[torch.cat([batch.labels for batch in batches])]
    return torch.cat([batch.images for batch in batches]), labels


def pixel_forward(subject: SubjectModel) -> Forward:
    """The logits of pixels from 0 to 1."""
    normalize = subject.bundle.preprocessing.normalize
    mean, std = (
        torch.tensor(values, device=subject.context.device)[:, None, None] for values in (normalize.mean, normalize.std)
    )
    return lambda pixels: subject.model((pixels - mean) / std)


def count_correct(
    subject: SubjectModel, items: Sequence[Item], given: Given, conditions: Sequence[Condition], examples: int
) -> tuple[Counter[Condition | None], Examples]:
    """How many images are classified correctly under each condition, and without any under None; the first images."""
    loader, device = subject.loader(items, subject.train_size), subject.context.device
    scaling, correct = subject.bundle.preprocessing.normalize, Counter[Condition | None]({None: 0})
    found = Examples([], [[] for _ in range(min(examples, len(items)))])
    model_labels = match_labels(subject.samples, subject.bundle)

    def hits(images: Tensor, labels: Tensor) -> int:
        with torch.no_grad():
            logits = (
                given.forward(images.to(device))
                if images.is_floating_point()
                else subject.model(scaling.apply(images.to(device)))
            )
        return int((logits.float().cpu().numpy().argmax(axis=1) == labels.cpu().numpy()).sum())

    with subject.context.progress("robustness", len(items) * (len(conditions) + 1)) as advance:
        for loaded in loader.epoch():
            labels = model_labels[loaded.labels].to(device)
            batch = ImageBatch(loaded.images, labels, loaded.indices.numpy(), given)
            shown = [(row, int(index)) for row, index in enumerate(batch.indices) if index < len(found.changed)]
            found.plain.extend(to_pixels(batch.images[row]) for row, _ in shown)
            correct[None] += hits(batch.images, labels)
            advance(len(labels))
            for condition in conditions:
                images = condition.change(batch)
                correct[condition] += hits(images, labels)
                for row, index in shown:
                    found.changed[index].append(Picture(condition, to_pixels(images[row])))
                advance(len(labels))
    return correct, found


def to_pixels(image: Tensor) -> Pixels:
    """An image (C, H, W) of levels, or of floats from 0 to 1, as levels (H, W, C)."""
    levels = (image * 255).round().to(torch.uint8) if image.is_floating_point() else image
    return levels.permute(1, 2, 0).cpu().numpy()


def draw_curves(
    conditions: Sequence[Condition], correct: Mapping[Condition | None, int], count: int
) -> list[RobustnessCurve]:
    """The curves of all conditions; those that start from unchanged images have them as their first point."""
    grouped: dict[tuple[Part, str], list[RobustnessPoint]] = {}
    for each in conditions:
        point = RobustnessPoint(x=each.x, label=each.label, top1=correct[each] / count)
        grouped.setdefault((each.part, each.curve), []).append(point)
    plain = RobustnessPoint(x=0.0, label="unchanged", top1=correct[None] / count)
    return [RobustnessCurve(part=part, name=name, points=(plain, *points)) for (part, name), points in grouped.items()]


def read_reference(path: Path, constants: ConstantsName, subject: SubjectModel) -> Mapping[str, float]:
    """The errors in the JSON of an evaluation of another model, on the same kind of corruptions and images."""
    from vitral.evaluation.evaluators import Evaluation

    if not path.is_file():
        hint = "vitral evaluate OTHER DATA --with robustness --json > other.json"
        raise ConfigError("no such file", code="config.not_found", where=path, hint=hint)
    evaluation = Evaluation.from_json(read_file(path))
    found = next((each for each in evaluation.results if isinstance(each, RobustnessResult)), None)
    if found is None or found.corruptions is None:
        message, hint = "no corruptions were evaluated there", "evaluate the other model --with robustness"
        raise ConfigError(message, code="config.conflict", where=path, hint=hint)
    if found.corruptions.constants != constants or evaluation.classes != len(subject.samples.classes):
        message = (
            f"corruptions of {found.corruptions.constants} on {evaluation.classes:,} classes, "
            f"expected {constants} on {len(subject.samples.classes):,}"
        )
        raise ConfigError(message, code="config.conflict", where=path, hint="use a reference on the same data")
    if zero := [name for name in CORRUPTIONS if not found.corruptions.errors[name]]:
        message, hint = f"the reference makes no errors under {zero[0]}", "mCE divides by them: use another reference"
        raise ConfigError(message, code="config.conflict", where=path, hint=hint)
    return found.corruptions.errors
