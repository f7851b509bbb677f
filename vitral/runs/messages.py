"""What a user reads about a run: its main facts at the start, where it stands when it resumes, and what to do next."""

import os
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from vitral.core.config import Config
from vitral.core.custom import is_reference, references
from vitral.core.files import outside_is_allowed
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.source import SAMPLE
from vitral.data.samples import SPLITS, Samples
from vitral.html.notebook import Charts, Link, Table, notebook_card
from vitral.html.page import plural, printable
from vitral.html.text import align_columns, format_count
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.registry import SIZES
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.recipe import ModelConfig, Recipe, TimeLimit, read_recipe
from vitral.recipes.registry import HUNDREDS
from vitral.runs.build import RunParts, first_split
from vitral.runs.folder import RunFolder, read_times, total_seconds
from vitral.runs.report.charts import metric_charts, metric_records
from vitral.runs.request import OBJECT
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.finetune import FinetuneConfig, LastLayers, Lora, Staged, TuningStage
from vitral.training.metrics import MetricsLine
from vitral.training.progress import format_duration, format_metric
from vitral.weights.pretrained import list_pretrained

Fact = tuple[str, str]  # name and value
TRUST = " --trust"
FEW_STEPS = 20  # below this a run says that it is too short to learn much

# Pretrained weights that suit a few hundred photos: small, and better than any training from scratch. What was
# measured was a ViT-S/14 of the same shape that had been trained further for another task (tools/real_vit.py).
SUGGESTED_WEIGHTS = "dinov2-small"
MEASURED = "243 photos of ants and bees gave 70.6% from scratch, 91.5% from another ViT-S/14"


def describe_model(model: ModelConfig) -> str:
    """`ViT-S/16, 12 layers of width 384`; a model that is not in the paper's tables has no name."""
    if isinstance(model, Resnet):
        return f"ResNet, stages of {', '.join(map(str, model.layers))}"
    name = "ViT"
    if isinstance(model.stem, Patches) and isinstance(model.mixer, Attention):
        patch, shape = model.stem.patch, (model.width, model.depth, model.mixer.heads)
        short = str(patch.height) if patch.height == patch.width else str(patch)
        name = next((f"ViT-{key}/{short}" for key, size in SIZES.items() if size[:3] == shape), name)
    return f"{name}, {plural(model.depth, 'layer')} of width {model.width}"


def describe_images(model: ModelConfig) -> str:
    """`64x64 pixels, 4x4 = 16 patches of 16x16`."""
    pixels = f"{model.image_size} pixels"
    if not isinstance(model, Vit):
        return pixels
    grid = model.layout(model.image_size).grid
    return f"{pixels}, {grid} = {plural(grid.cells(), 'patch', 'patches')} of {model.stem.token_size()}"


def describe_finetune(part: FinetuneConfig) -> str:
    """The kind of a fine-tuning, with its main settings."""
    match part:
        case LastLayers():
            return f"last {part.count} layers"
        case Staged():
            return ", then ".join(["staged: the head", *map(describe_stage, part.planned)])
        case Lora():
            return f"lora, rank {part.rank}, alpha {part.alpha:g}, on {', '.join(part.modules)}"
        case _:
            return part.kind


def describe_stage(stage: TuningStage) -> str:
    """`the last 2 layers on 4 views of each image`."""
    layers = "all layers" if stage.layers == "all" else f"the last {plural(stage.layers, 'layer')}"
    return f"{layers} on {plural(stage.views, 'view')} of each image" if stage.views else layers


def describe_start(folder: RunFolder, parts: RunParts, group: ProcessGroup) -> list[str]:
    """The main facts of a run before its first step, as aligned lines."""
    recipe, samples, model = parts.recipe, parts.samples, parts.recipe.model
    epochs = parts.steps / parts.plan.steps_per_epoch
    length = f"{epochs:.4g} {'epoch' if epochs == 1 else 'epochs'}, {plural(parts.steps, 'step')}"
    if isinstance(recipe.length, TimeLimit):
        length = f"as many steps as fit into {format_duration(recipe.length.seconds)}"
    split = f", in {plural(recipe.microbatches, 'microbatch', 'microbatches')}" if recipe.microbatches > 1 else ""
    facts = [
        ("model", f"{describe_model(model)}, {_describe_size(parts)}"),
        ("images", describe_images(model)),
        ("data", _describe_data(recipe, samples)),
        ("training", f"{length}, batch size {recipe.batch_size:,}{split}"),
        *([("fine-tuning", describe_finetune(recipe.finetune))] if isinstance(recipe.finetune, Staged) else []),
        ("device", _describe_device(parts, group)),
        ("run folder", printable(str(folder.path))),
    ]
    return align_columns(facts)


def warn_few_steps(parts: RunParts) -> list[str]:
    """A warning if the whole run has so few steps that it can hardly change its weights for the better."""
    if parts.steps >= FEW_STEPS:
        return []
    each = plural(parts.plan.steps_per_epoch, "step")
    return [
        f"warning: only {plural(parts.steps, 'step')} in all (an epoch has {each}), too few to learn much; "
        "use more --epochs or a smaller --batch-size"
    ]


def _describe_data(recipe: Recipe, samples: Samples) -> str:
    counts = [f"{len(samples.of(split)):,} {split}" for split in SPLITS if samples.of(split)]
    classes = f" of {plural(len(samples.classes), 'class', 'classes')}" if recipe.task.labeled else ""
    return f"{printable(samples.where)}: {', '.join(counts)} images{classes}"


def _describe_size(parts: RunParts) -> str:
    """The parameters of the model, and how many of them are trained if not all are."""
    everything = sum(weight.numel() for weight in parts.recipe.model.build_empty().parameters())
    trained = sum(weight.numel() for weight in parts.state.task.model.parameters() if weight.requires_grad)
    share = f" ({format_count(trained)} trained)" if trained < everything else ""
    return f"{format_count(everything)} parameters{share}"


def _describe_device(parts: RunParts, group: ProcessGroup) -> str:
    device = group.device
    kind = f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    dtype = str(parts.state.precision.dtype).removeprefix("torch.")
    processes = f", {group.world.size:,} processes" if group.world.size > 1 else ""
    return f"{kind}, {plural(torch.get_num_threads(), 'thread')}{processes}, {dtype}"


def run_card(folder: RunFolder, recipe: Recipe, samples: Samples, lines: Sequence[str]) -> str:
    """A run as HTML for a notebook: the given lines, its main facts, its curves and a link to its report."""
    facts = [
        ("model", describe_model(recipe.model)),
        ("images", describe_images(recipe.model)),
        ("data", _describe_data(recipe, samples)),
        ("recipe", recipe.name),
    ]
    charts = [chart for chart in metric_charts(metric_records(folder.path)) if chart.title in ("loss", "accuracy")]
    report = [Link(f"report: {folder.report}", folder.report)] if folder.report.exists() else []
    return notebook_card(f"run {folder.path}", {"": [*lines, Table(facts), Charts(charts), *report]})


def describe_resume(folder: RunFolder, parts: RunParts, step: int, best: MetricsLine | None, left: int) -> list[str]:
    """A run that continues after a step, in two lines: what it is; where it stands and how many steps are left."""
    model = f"{describe_model(parts.recipe.model)}, {_describe_size(parts)}"
    what = f"resuming {printable(str(folder.path))}: {model}, on {printable(parts.samples.where)}"
    each = parts.plan.steps_per_epoch
    where = f"step {step:,} of {parts.steps:,} (epoch {step / each:.3g} of {parts.steps / each:.3g})"
    if best is not None:
        by = parts.recipe.task.best_by
        name = by if by in best.values else "loss"
        where += f", best {best.split} {format_metric(name, best.values[name])} at epoch {best.epoch:.3g}"
    if not left:
        return [what, f"{where}; training is complete"]
    seconds = total_seconds(read_times(folder.path)) / step * left
    return [what, f"{where}; {plural(left, 'step')} left{f', about {format_duration(seconds)}' if seconds else ''}"]


def suggest_weights(recipe: Recipe, samples: Samples) -> str:
    """One line with the command that would do better, what it costs and what was measured; empty if none would.

    For a few photos and random weights.
    """
    images = len(samples.of("train"))
    is_photos = samples.where not in {SAMPLE, *NAMED_DATASETS} and recipe.model.channels == 3
    if recipe.weights or recipe.images.external or not recipe.task.labeled or not is_photos or images > HUNDREDS:
        return ""
    package = "" if find_spec("huggingface_hub") else ", needs pip install 'vitral[hub]'"
    command = f"vitral train {data_arguments(recipe)} --weights {SUGGESTED_WEIGHTS}"
    if recipe.data.path.startswith(OBJECT):
        command = f'vitral.train(..., weights="{SUGGESTED_WEIGHTS}")'
    (weights,) = list_pretrained(SUGGESTED_WEIGHTS)
    cost = f"{weights.megabytes:,} MB, license {weights.license}{package}"
    return f"tip: {plural(images, 'photo')} train better from pretrained weights ({cost}; {MEASURED}): {command}"


def data_arguments(recipe: Recipe) -> str:
    """The data of a recipe as arguments of a command: its path, relative to the working directory if below it."""
    root = f" --root {_quote(recipe.data.root)}" if recipe.data.root else ""
    return f"{_quote(recipe.data.path)}{root}{_trust_data(recipe)}{_outside_option()}"


def trust_option(config: Config) -> str:
    """` --trust` if the config has classes of a user, which commands do not import without it; else empty."""
    return TRUST if any(references(config.model_dump(mode="json"))) else ""


def resume_command(folder: RunFolder, recipe: Recipe, trackers: Sequence[str]) -> str:
    """The command that resumes a run, with its trackers."""
    options = "".join(f" --tracker {shlex.quote(name)}" for name in trackers) + _moved_data(folder, recipe)
    return (
        f"vitral train --resume {shlex.quote(str(folder.path))}{options}{trust_option(recipe) or _trust_data(recipe)}"
        f"{_outside_option()}"
    )


def _outside_option() -> str:
    """` --allow-outside` if this process was allowed to read files outside of the folder of a list; else empty."""
    return " --allow-outside" if outside_is_allowed() else ""


def _moved_data(folder: RunFolder, recipe: Recipe) -> str:
    """` --data PATH` if the data of the run was moved after its start."""
    if not folder.recipe.is_file():
        return ""
    started = read_recipe(folder.recipe.read_bytes()).data
    moved = [
        new
        for old, new in ((started.path, recipe.data.path), (started.root, recipe.data.root))
        if old != new and not new.startswith(OBJECT)
    ]
    return "".join(f" --data {shlex.quote(path)}" for path in moved)


def _trust_data(recipe: Recipe) -> str:
    path = recipe.data.path
    return TRUST if is_reference(path) and not path.startswith(OBJECT) else ""


def next_commands(folder: RunFolder, recipe: Recipe, samples: Samples) -> list[Fact]:
    """What to do with a finished run: the purpose of each command, and the command, which works as it stands."""
    run, named = _quote(str(folder.path)), recipe.data.path in {SAMPLE, *NAMED_DATASETS}
    trust = trust_option(recipe.model)
    in_python = f"vitral.Predictor({str(folder.path)!r}{', trust=True' if trust else ''})"
    if recipe.data.path.startswith(OBJECT):
        return [("use it in Python", in_python)]
    split = first_split(samples, "test", "val", "train")
    example = SAMPLE if recipe.data.path == SAMPLE else _example_file(samples, split)
    commands = []
    if not recipe.task.labeled:
        data = data_arguments(recipe) if named else "PHOTOS/"
        commands.append(("fine-tune it on labeled images", f"vitral train {data} --weights {run}{trust}"))
    elif split != "train" and not is_reference(recipe.data.path):
        commands.append(("evaluate it", f"vitral evaluate {run} {data_arguments(recipe)}{trust_option(recipe)}"))
    if example and recipe.task.labeled:
        what = "images" if example == SAMPLE else "an image"
        commands.append((f"predict {what}", f"vitral predict {run} {_quote(example)}{trust}"))
    if example and isinstance(recipe.model, Vit):
        commands.append(("see what it looks at", f"vitral explain {run} {_quote(example)}{trust}"))
    return commands or [("use it in Python", in_python)]  # no command could name the data


def format_commands(commands: Sequence[Fact]) -> list[str]:
    """Commands in aligned lines, their purpose first, so that the rest of a line can be pasted into a shell."""
    return align_columns([(f"  {purpose}", command) for purpose, command in commands])


def _example_file(samples: Samples, split: str | None) -> str:
    """A file of the split; empty where the images are not files of their own."""
    item = next((item for item in samples.items if item.split == split), None)
    path = samples.store.address(item.name) if item else ""
    return path if path and Path(path).is_file() else ""


def _quote(path: str) -> str:
    """A path for the shell, relative to the working directory if it is below it."""
    here = os.path.abspath(".") + os.sep
    return shlex.quote(os.path.relpath(path) if path.startswith(here) else path)
