"""The artifacts of a run: bundles with their cards, the final evaluation, and the report."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.data.samples import Split
from vitral.evaluation.accuracy import compute_accuracy, compute_calibration, wilson_interval
from vitral.evaluation.subject import predict
from vitral.explanation.walkthrough.describe import multiply_adds
from vitral.models.vit import Vit
from vitral.recipes.recipe import Epochs, Recipe, Steps
from vitral.runs.build import RunParts, build_loader
from vitral.runs.folder import Environment, RunFolder, read_times, total_seconds
from vitral.runs.report.attention import attention_section
from vitral.runs.report.report import Cost, Report, ReportEvaluation, write_report
from vitral.tasks.classify import Classify
from vitral.training.checkpoints.checkpoint import checkpoint_path, open_checkpoint
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.finetune import LastLayers, Lora
from vitral.training.metrics import MetricsLine, read_metrics
from vitral.weights.bundle import Bundle, read_bundle, write_bundle
from vitral.weights.card import CardFacts, Result, TrainingFacts, render_card
from vitral.weights.load import load

Fact = tuple[str, str]


def summarize_recipe(recipe: Recipe) -> list[Fact]:
    """The main settings of a recipe, for the card and the report."""
    optimizer = recipe.optimizer
    return [
        ("recipe", recipe.name),
        ("model", _model(recipe)),
        ("start", f"weights of {recipe.weights}" if recipe.weights else f"random weights, seed {recipe.seed}"),
        ("fine-tuning", _finetune(recipe)),
        ("task", _task(recipe)),
        ("length", _length(recipe)),
        ("optimizer", f"{optimizer.kind}, learning rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}"),
        ("schedule", f"{recipe.schedule.kind}, warmup {_warmup(recipe)}"),
        ("images", ", ".join([recipe.images.crop.kind, *(each.kind for each in recipe.images.augment)])),
        ("average", recipe.average.kind),
    ]


def _model(recipe: Recipe) -> str:
    model = recipe.model
    if isinstance(model, Vit):
        size = f"patches of {model.stem.patch}, images of {model.image_size}"
        return f"ViT, {model.depth} layers of width {model.width}, {size}"
    return f"ResNet, stages of {', '.join(map(str, model.layers))}, images of {model.image_size}"


def _task(recipe: Recipe) -> str:
    task = recipe.task
    if isinstance(task, Classify):
        return f"classify, {task.loss.kind} loss, mixing {task.mixing.kind}"
    return f"masked patches, target {task.target.kind}"


def _finetune(recipe: Recipe) -> str:
    match recipe.finetune:
        case LastLayers(count=count):
            return f"last {count} layers"
        case Lora(rank=rank, alpha=alpha, modules=modules):
            return f"lora, rank {rank}, alpha {alpha:g}, on {', '.join(modules)}"
        case other:
            return other.kind


def _length(recipe: Recipe) -> str:
    match recipe.length:
        case Epochs(epochs=epochs):
            how_long = f"{epochs:g} epochs"
        case Steps(steps=steps):
            how_long = f"{steps:,} steps"
        case shown:
            how_long = f"{shown.images:,} images seen, in {shown.min_epochs:g} to {shown.max_epochs:g} epochs,"
    return f"{how_long} in batches of {recipe.batch_size:,}"


def _warmup(recipe: Recipe) -> str:
    warmup = recipe.schedule.warmup
    return f"{warmup:.0%} of the run" if warmup < 1 else f"{warmup:,.0f} steps"


Status = Literal["running", "stopped", "done"]
BACKWARD_COST = 2  # in forward passes


class RunArtifacts:
    """Writes the results of a run. Every process has one; only the main process writes files."""

    def __init__(self, folder: RunFolder, parts: RunParts, group: ProcessGroup) -> None:
        self.folder, self.parts, self.group = folder, parts, group

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
        prefix = "model."
        tensors = {name.removeprefix(prefix): saved[name] for name in groups["task"] if name.startswith(prefix)}
        self._write(home, step, tensors, line)

    def _write(self, home: Path, step: int, tensors: Mapping[str, Tensor], line: MetricsLine | None) -> None:
        if self.group.is_main:
            bundle, plain = self.bundle(), self.parts.recipe.finetune.merge_state(tensors)
            write_bundle(home, bundle, plain, render_card(bundle, self.facts(step, self._results(line))))

    def _results(self, line: MetricsLine | None) -> tuple[Result, ...]:
        """The results on the card of a validation during the run."""
        if line is None or not isinstance(self.parts.recipe.task, Classify):
            return ()
        images = len([item for item in self.parts.samples.items if item.split == line.split])
        interval = wilson_interval(round(line.values["accuracy"] * images), images)
        value = line.values["accuracy"]
        return (Result("accuracy", value, interval.low, interval.high, line.split, images, chosen=line.split == "val"),)

    def bundle(self) -> Bundle:
        """The bundle config of this run: model, preprocessing, classes."""
        recipe = self.parts.recipe
        classes = self.parts.samples.classes if isinstance(recipe.task, Classify) else ()
        needs = recipe.preprocessing()
        source = f"fine-tuned from {recipe.weights}" if recipe.weights else ""
        return Bundle(
            model=recipe.model,
            task=recipe.task.kind,
            preprocessing=needs,
            classes=classes,
            activation=recipe.task.loss.kind if isinstance(recipe.task, Classify) else "softmax",
            source=source,
        )

    def facts(self, step: int, results: tuple[Result, ...]) -> CardFacts:
        """The facts of the run on the card."""
        samples = self.parts.samples
        images = {split: len(samples.of(split)) for split in ("train", "val", "test") if samples.of(split)}
        lines = tuple(f"{label}: {value}" for label, value in summarize_recipe(self.parts.recipe))
        seconds = total_seconds(read_times(self.folder.path))
        environment = Environment.from_json(self.folder.environment.read_bytes())
        trained = TrainingFacts(samples.where, images, environment.fingerprint, lines, step, seconds)
        return CardFacts(self.folder.path.name, trained, results)

    def evaluate(self, home: Path) -> ReportEvaluation | None:
        """Evaluate a bundle on the test images, or on the validation images if there are none. A collective."""
        samples = self.parts.samples
        splits: tuple[Split, ...] = ("test", "val")
        split = next((split for split in splits if samples.of(split)), None)
        if split is None or not isinstance(self.parts.recipe.task, Classify):
            return None
        device, normalize = self.parts.microbatch_config.device, self.parts.recipe.images.normalize
        model = load(home).model.to(device)
        loader = build_loader(self.parts.recipe, samples, split, self.group.world)
        predictions = predict(model, loader, normalize, device, self.group.gather, lambda images: None)
        return ReportEvaluation(
            split, predictions, compute_accuracy(predictions, samples.classes), compute_calibration(predictions)
        )

    def update_card(self, home: Path, step: int, evaluation: ReportEvaluation) -> None:
        """Rewrite the card of a bundle, whose weights are those of a step, with the final evaluation."""
        if not self.group.is_main:
            return
        bundle, tensors = read_bundle(home)
        found, split = evaluation.accuracy, evaluation.split
        low, high = found.ci95.low, found.ci95.high
        result = Result("accuracy", found.top1, low, high, split, found.images, chosen=split == "val")
        write_bundle(home, bundle, tensors, render_card(bundle, self.facts(step, (result,))))

    def write_report(self, step: int, status: Status, best: int, evaluation: ReportEvaluation | None) -> None:
        """Write report.html after a step; `best` is the step of the best weights so far."""
        if not self.group.is_main:
            return
        attention = (
            None if evaluation is None else attention_section(load(self.folder.best), self.parts.samples, evaluation)
        )
        environment = Environment.from_json(self.folder.environment.read_bytes())
        recipe, samples = self.parts.recipe, self.parts.samples
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
            metrics=[
                {"step": line.step, "epoch": line.epoch, "split": line.split, **line.values}
                for line in read_metrics(self.folder.path)
            ],
            evaluation=evaluation,
            attention=attention,
            cost=self.cost(step),
            notes=[*samples.notes, *self.notes(status, best)],
            next=self.next_commands(status),
        )
        write_report(self.folder.report, report)

    def cost(self, step: int) -> Cost:
        """Time, computation and memory up to a step, over all sessions."""
        records = read_times(self.folder.path)
        images = step * self.parts.plan.batch_size
        once = multiply_adds(self.parts.recipe.model, in_full=not isinstance(self.parts.recipe.task, Classify))
        parameters = sum(weight.numel() for weight in self.parts.recipe.model.build_empty().parameters())
        peak = max((record.peak_memory for record in records), default=0)
        return Cost(total_seconds(records), images, (1 + BACKWARD_COST) * once * images, peak, parameters)

    def notes(self, status: Status, best: int) -> list[str]:
        """Remarks for the report."""
        if not self.parts.samples.of("val"):
            return ["There are no validation images: the best weights are those of the last step."]
        if status == "done" or not best:
            return []
        return [f"The best weights so far, of step {best:,}, are in best/."]

    def next_commands(self, status: Status) -> list[Fact]:
        """The commands that the report suggests."""
        run = shlex.quote(str(self.folder.path))
        if status != "done":
            return [("resume the run", f"vitral train --resume {run}")]
        if not self.parts.recipe.task.labeled:
            return [("fine-tune it", f"vitral train PHOTOS/ --weights {run}")]
        data = shlex.quote(self.parts.recipe.data.path)
        return [
            ("fine-tune it further", f"vitral train {data} --weights {run}"),
            ("check the data", f"vitral check {data}"),
        ]


def environment_facts(environment: Environment) -> list[Fact]:
    """The environment for the report."""
    memory = f"{environment.memory / 2**30:,.0f} GiB"
    git = f"{environment.git.commit}{' with local changes' if environment.git.dirty else ''}"
    facts = [
        ("vitral", environment.vitral),
        ("torch", environment.torch),
        ("python", environment.python),
        ("numpy, pillow", f"{environment.numpy}, {environment.pillow}"),
        ("system", environment.platform),
        ("processor", f"{environment.processor}, {environment.cores} cores, {memory}"),
        ("GPU", ", ".join(environment.gpus)),
        ("code", git),
        ("data fingerprint", environment.fingerprint),
        ("started", environment.started),
    ]
    return [(name, value) for name, value in facts if value]
