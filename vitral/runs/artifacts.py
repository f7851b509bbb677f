"""The artifacts of a run: bundles with their cards, the final evaluation, and the report."""

from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Literal

from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.core.manifest import own_files
from vitral.data.samples import SPLITS
from vitral.evaluation.accuracy import Interval, compute_accuracy, compute_calibration, wilson_interval
from vitral.evaluation.subject import predict
from vitral.explanation.walkthrough.describe import multiply_adds
from vitral.html.page import plural
from vitral.models.base import Model
from vitral.models.embed import describe_stem
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.recipe import (
    Epochs,
    Images,
    ImagesSeen,
    LengthConfig,
    ModelConfig,
    PlannedSteps,
    Recipe,
    Steps,
    TimeLimit,
)
from vitral.runs.build import RunParts, build_loader, first_split
from vitral.runs.callbacks.features import FeatureMonitor, FeatureSnapshot
from vitral.runs.folder import Environment, RunFolder, read_times, total_seconds
from vitral.runs.messages import (
    describe_finetune,
    describe_stage,
    next_commands,
    resume_command,
    suggest_weights,
)
from vitral.runs.report.attention import attention_section
from vitral.runs.report.charts import metric_records
from vitral.runs.report.features import FeatureSection, attention_grid, feature_section
from vitral.runs.report.pictures import PictureGrid, augmented_grid, masked_grid
from vitral.runs.report.report import Cost, Fact, Report, ReportEvaluation, write_report
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.training.callbacks import score
from vitral.training.checkpoints.checkpoint import checkpoint_path, open_checkpoint
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.finetune import Staged, TuningStage
from vitral.training.metrics import MetricsLine, read_metrics
from vitral.training.progress import format_duration, format_metric
from vitral.weights.bundle import Bundle, read_bundle, write_bundle
from vitral.weights.card import CardFacts, Result, TrainingFacts, render_card
from vitral.weights.load import LoadedModel, load

Status = Literal["running", "stopped", "done"]
BACKWARD_COST = 2  # in forward passes
NOT_IMPROVED = "Training did not improve on the weights that it started from: best/ has those, of step 0."


def summarize_recipe(recipe: Recipe) -> list[Fact]:
    """The main settings of a recipe, for the card and the report."""
    optimizer, warmup, decay = recipe.optimizer, recipe.schedule.warmup, getattr(recipe.optimizer, "weight_decay", 0.0)
    warmup_text = f"{warmup:.0%} of the run" if warmup < 1 else f"{warmup:,.0f} steps"
    return [
        ("recipe", recipe.name),
        ("model", f"{describe_part(recipe.model)}, images of {recipe.model.image_size}"),
        ("start", f"weights of {recipe.weights}" if recipe.weights else f"random weights, seed {recipe.seed}"),
        ("fine-tuning", describe_finetune(recipe.finetune)),
        ("task", describe_part(recipe.task)),
        ("length", f"{describe_part(recipe.length)} in batches of {recipe.batch_size:,}"),
        ("optimizer", f"{optimizer.kind}, learning rate {optimizer.lr:g}, weight decay {decay:g}"),
        ("schedule", f"{recipe.schedule.kind}, warmup {warmup_text}"),
        ("images", describe_views(recipe.images)),
        ("average", recipe.average.kind),
    ]


def describe_views(images: Images) -> str:
    """The crop and augmentations of training images, or the number of views, which have their own."""
    if images.views.count() > 1:
        return f"{images.views.kind}, {images.views.count()} views of each image"
    return ", ".join(each.kind for each in (images.crop, *images.augment))


def describe_part(part: ModelConfig | TaskConfig | LengthConfig) -> str:
    """The kind of a part of a recipe, with its main settings."""
    match part:
        case Vit():
            text = f"ViT, {part.depth} layers of width {part.width}, {describe_stem(part.stem)}"
        case Resnet():
            text = f"ResNet, stages of {', '.join(map(str, part.layers))}"
        case Classify():
            text = f"classify, {part.loss.kind} loss, mixing {part.mixing.kind}"
        case MaskedPatches():
            text = f"masked patches, target {part.target.kind}"
        case Epochs():
            text = "1 epoch" if part.epochs == 1 else f"{part.epochs:g} epochs"
        case Steps():
            text = plural(part.steps, "step")
        case TimeLimit():
            text = f"{format_duration(part.seconds)}, as many steps as fit,"
        case PlannedSteps():
            text = f"{part.changes[-1].steps:,} steps, as a time limit had planned them,"
        case ImagesSeen():
            text = f"{part.images:,} images seen, in {part.min_epochs:g} to {part.max_epochs:g} epochs,"
        case _:
            text = part.kind
    return text


def stage_outcomes(recipe: Recipe, steps: int, lines: Iterable[MetricsLine]) -> list[str]:
    """What each stage of fine-tuning gave on the validation images, and whether it was kept; nothing for one stage."""
    spans, by = recipe.finetune.spans(steps), recipe.task.best_by
    found = [line for line in lines if line.split == "val"]
    if not isinstance(recipe.finetune, Staged) or not found:
        return []
    best = max((score(line, by) for line in found if not line.step), default=-inf)
    outcomes = [f"the fitted head {format_score(best, by)}"]
    for span in spans:
        reached = max((score(line, by) for line in found if span.first < line.step <= span.end), default=-inf)
        if reached > -inf:
            kept = "kept" if reached > best else "no better, not kept"
            outcomes.append(f"{describe_stage(span.stage)} {format_score(reached, by)} ({kept})")
        best = max(best, reached)
    return [f"Fine-tuning in stages, by the validation images: {'; '.join(outcomes)}."]


def stage_passes(stage: TuningStage, model: ModelConfig) -> float:
    """What a training image costs in a stage, in forward passes of the model; tokens in memory cost nothing."""
    share = stage.layers / model.depth if stage.layers != "all" and isinstance(model, Vit) else 1.0
    return (share if stage.views else 1.0) + BACKWARD_COST * share


def format_score(value: float, by: str) -> str:
    """The score of an evaluation: its accuracy, or its loss."""
    return format_metric(by, abs(value))


class RunArtifacts:
    """Writes the results of a run. Every process has one; only the main process writes files."""

    def __init__(self, folder: RunFolder, parts: RunParts, group: ProcessGroup) -> None:
        self.folder, self.parts, self.group = folder, parts, group
        self.monitor: FeatureMonitor | None = None  # of the main process, for a task without labels
        self.features: FeatureSnapshot | None = None  # the newest

    def write_bundle(self, home: Path, step: int, line: MetricsLine | None) -> None:
        """Write a bundle of the current averaged weights, with validation metrics on its card. A collective."""
        state = self.parts.state
        with state.average.applied_to(state.task):
            tensors = self.parts.strategy.full_state_dict(self.parts.model)
        self._write(home, step, tensors, line)

    def write_saved_bundle(self, home: Path, step: int, line: MetricsLine | None) -> None:
        """Write a bundle of the averaged weights of an earlier step, if its checkpoint is complete."""
        if not self.group.is_main:
            return
        try:
            groups = open_checkpoint(checkpoint_path(self.folder.checkpoints, step)).load().tensors
        except WeightsError:
            return  # the bundle was written at that step
        saved = groups["task"] | groups.get("average", {})
        prefix = f"{self.parts.state.task.bundled}."
        names = (name for name in groups["task"] if name.startswith(prefix))
        self._write(home, step, {name.removeprefix(prefix): saved[name] for name in names}, line)

    def _write(self, home: Path, step: int, tensors: Mapping[str, Tensor], line: MetricsLine | None) -> None:
        if not self.group.is_main:
            return
        recipe, samples = self.parts.recipe, self.parts.samples
        classifies = recipe.task.trains == "classify"
        bundle = Bundle(
            model=recipe.model,
            task=recipe.task.trains,
            preprocessing=recipe.preprocessing(),
            classes=samples.classes if classifies else (),
            activation=recipe.task.loss.kind if isinstance(recipe.task, Classify) else "softmax",
            source=f"fine-tuned from {recipe.weights}" if recipe.weights else "",
        )
        results = []
        if line and classifies and "accuracy" in line.values:
            images, value = sum(item.split == line.split for item in samples.items), line.values["accuracy"]
            results = [_result(value, wilson_interval(round(value * images), images), line.split, images)]
        plain = recipe.finetune.merge_state(tensors)
        write_bundle(home, bundle, plain, render_card(bundle, self._facts(step, results)))

    def _facts(self, step: int, results: Iterable[Result]) -> CardFacts:
        """The facts of the run on the card."""
        samples = self.parts.samples
        images = {str(split): len(samples.of(split)) for split in SPLITS if samples.of(split)}
        lines = tuple(f"{label}: {value}" for label, value in summarize_recipe(self.parts.recipe))
        seconds = total_seconds(read_times(self.folder.path))
        fingerprint = self.folder.read_environment().fingerprint
        trained = TrainingFacts(samples.where, images, fingerprint, lines, step, seconds)
        return CardFacts(self.folder.path.name, trained, tuple(results))

    def evaluate(self, home: Path) -> ReportEvaluation | None:
        """Evaluate a bundle on the test images, or on the validation images if there are none. A collective."""
        recipe, samples = self.parts.recipe, self.parts.samples
        split = first_split(samples, "test", "val")
        if split is None or recipe.task.trains != "classify":
            return None
        device = self.parts.microbatch_config.device
        with own_files():
            model = load(home).model.to(device)
        loader = build_loader(recipe, samples, split, self.group.world)
        predictions = predict(model, loader, recipe.images.normalize, device, self.group.gather, lambda images: None)
        accuracy = compute_accuracy(predictions, samples.classes)
        return ReportEvaluation(split, predictions, accuracy, compute_calibration(predictions))

    def update_card(self, home: Path, step: int, evaluation: ReportEvaluation) -> None:
        """Rewrite the card of a bundle, whose weights are those of a step, with the final evaluation."""
        if self.group.is_main:
            with own_files():
                bundle, tensors, _ = read_bundle(home)
            found = evaluation.accuracy
            result = _result(found.top1, found.ci95, evaluation.split, found.images)
            write_bundle(home, bundle, tensors, render_card(bundle, self._facts(step, [result])))

    def write_report(self, step: int, status: Status, best: int, evaluation: ReportEvaluation | None) -> None:
        """Write report.html after a step; `best` is the step of the best weights so far."""
        if not self.group.is_main:
            return
        recipe, samples, environment = self.parts.recipe, self.parts.samples, self.folder.read_environment()
        report = Report(
            title=self.folder.path.name,
            status=status,
            answers="images are classified" if recipe.task.labeled else "patches are predicted",
            steps=self.parts.steps,
            command=environment.command,
            summary=summarize_recipe(recipe),
            recipe=recipe.to_json(),
            environment=environment_facts(environment),
            samples=samples,
            metrics=metric_records(self.folder.path),
            evaluation=evaluation,
            attention=attention_section(self._best_model(), samples, evaluation) if evaluation else None,
            cost=self.cost(step),
            notes=[*samples.notes, *self._notes(status, best), *filter(None, [suggest_weights(recipe, samples)])],
            next=self._next_commands(status),
            augmented=augmented_grid(recipe, samples),
            masked=self._masked_grid(),
            mixing=recipe.task.mixing.kind if isinstance(recipe.task, Classify) else "none",
            task=recipe.task.kind,
            features=self._feature_section(),
            heads=self._heads(),
        )
        write_report(self.folder.report, report)

    def measure_best(self, step: int) -> None:
        """Measure the features of the best weights, which are those of a step, for the report."""
        if self.monitor is not None and (self.features is None or self.features.step != step):
            model = self._best_model().model.to(self.parts.microbatch_config.device)
            self.features = self.monitor.measure(model, step)

    def _feature_section(self) -> FeatureSection | None:
        if self.monitor is None or self.features is None:
            return None
        return feature_section(self.monitor, self.features)

    def _heads(self) -> PictureGrid | None:
        """What the heads of the averaged weights attend to."""
        state, model = self.parts.state, self.parts.model
        if self.monitor is None or not isinstance(model, Model):
            return None
        with state.average.applied_to(state.task):
            return attention_grid(model, self.monitor)

    def _best_model(self) -> LoadedModel:
        with own_files():
            return load(self.folder.best)

    def _masked_grid(self) -> PictureGrid | None:
        """Masked images and what the averaged weights predict; None for sharded weights, which need all processes."""
        state = self.parts.state
        if self.parts.strategy.sharded:
            return None
        with state.average.applied_to(state.task):
            return masked_grid(state.task, self.parts.recipe, self.parts.samples)

    def cost(self, step: int) -> Cost:
        """Time, computation and memory up to a step, over all sessions."""
        records, model = read_times(self.folder.path), self.parts.recipe.model
        batch = self.parts.plan.batch_size
        # Without labels there are views, teachers, decoders, and encoders of a part of the patches: not counted.
        task = self.parts.recipe.task
        once = multiply_adds(model, in_full=task.trains != "classify") if task.labeled else None
        spans = self.parts.recipe.finetune.spans(self.parts.steps)
        passes = sum(
            max(0, min(step, span.end) - span.first) * batch * stage_passes(span.stage, model) for span in spans
        )
        parameters = sum(weight.numel() for weight in model.build_empty().parameters())
        peak = max((record.peak_memory for record in records), default=0)
        return Cost(
            total_seconds(records), step * batch, None if once is None else round(once * passes), peak, parameters
        )

    def _notes(self, status: Status, best: int) -> list[str]:
        lines = read_metrics(self.folder.path)
        return [*stage_outcomes(self.parts.recipe, self.parts.steps, lines), *self._notes_on_best(status, best)]

    def _notes_on_best(self, status: Status, best: int) -> list[str]:
        if not self.parts.samples.of("val"):
            return ["There are no validation images: the best weights are those of the last step."]
        if status == "done" and not best:
            return [NOT_IMPROVED]
        return [] if status == "done" or not best else [f"The best weights so far, of step {best:,}, are in best/."]

    def _next_commands(self, status: Status) -> list[Fact]:
        """The purpose of each command that the report suggests, and the command."""
        if status != "done":
            return [("resume the run", resume_command(self.folder, self.parts.recipe, ()))]
        return next_commands(self.folder, self.parts.recipe, self.parts.samples)


def _result(accuracy: float, interval: Interval, split: str, images: int) -> Result:
    return Result("accuracy", accuracy, interval.low, interval.high, split, images, chosen=split == "val")


def environment_facts(environment: Environment) -> list[Fact]:
    """The environment for the report."""
    memory = f"{environment.memory / 2**30:,.0f} GiB"
    facts = [
        ("vitral", environment.vitral),
        ("torch", environment.torch),
        ("python", environment.python),
        ("numpy, pillow", f"{environment.numpy}, {environment.pillow}"),
        ("system", environment.platform),
        ("processor", f"{environment.processor}, {environment.cores} cores, {memory}"),
        ("GPU", ", ".join(environment.gpus)),
        ("code", f"{environment.git.commit}{' with local changes' if environment.git.dirty else ''}"),
        ("data fingerprint", environment.fingerprint),
        ("started", environment.started),
    ]
    return [(name, value) for name, value in facts if value]
