"""Options that several verbs share, as types of their parameters: `device: options.Device = "auto"`."""

from typing import Annotated, Any

import typer

from vitral.cli.terminal.completion import (
    DATASETS,
    DEVICES,
    MODELS,
    RECIPES,
    TASKS,
    Completion,
    complete_from,
    complete_name_or_path,
    complete_weights,
)
from vitral.core.errors import format_choices
from vitral.core.machine import cpu_count


def option(
    metavar: str, help: str, default: str | bool = True, complete: Completion | None = None, *names: str, **more: Any
) -> Any:
    """An option with a value; `default` is what the help says of its default, by default the value itself."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=default, autocompletion=complete, **more)


def settings_option(help: str) -> Any:
    """`--set path=value`, any number of times."""
    return option("A.B=C", help, "none", None, "--set", default_factory=list)


DATA_HELP = (
    "A folder of images, a manifest, tar shards, Parquet or Arrow files, or a named dataset: "
    f"{format_choices(DATASETS)}."
)
complete_data = complete_name_or_path(DATASETS)
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=complete_data)]
MODEL_HELP = "A run, a bundle, weights of another library, or a name that vitral models lists, such as dinov2-small."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_weights)]
DEVICE_HELP = f"The device: {format_choices(DEVICES)}."
Device = Annotated[str, option("KIND", DEVICE_HELP, "auto", complete_from(DEVICES))]
WORKERS_HELP = "Processes that decode images, or auto, which is 0 on a CPU."
Workers = Annotated[str, option("N", WORKERS_HELP, "auto")]
ROOT_HELP = "Folder with the files of a named dataset, such as ~/datasets."
Root = Annotated[str, option("FOLDER", ROOT_HELP, "/usr/share/datasets, ./data or .")]
PER_CORE: dict[str, Any] = {"default": "one per core", "default_factory": cpu_count}  # of an option

LENIENT_HELP = "Use the readable part of damaged images, and list those images. Without it they are errors."
Lenient = Annotated[bool, typer.Option("--lenient", help=LENIENT_HELP)]
PIXELS_HELP = (
    "Maximum number of pixels of an image, such as 108000000. Larger images are refused before they are decoded."
)
MaxPixels = Annotated[int | None, option("N", PIXELS_HELP, "that of the model, usually 50 million", min=1)]

ISOLATE_HELP = (
    "Decode images in child processes with limits on memory and time. A file that kills its decoder is an error, and "
    "the others are read."
)
Isolate = Annotated[bool, typer.Option("--isolate", help=ISOLATE_HELP)]

SKIP_HELP = "Skip images that cannot be read, and name them. Without it they are named, and the command fails."
SkipBad = Annotated[bool, typer.Option("--skip-bad", help=SKIP_HELP)]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not cache features on disk.")]

# What a run is asked for, by `train` and by `check`, which says what `train` would do.
OF_RECIPE = "that of the recipe"
RECIPE_HELP = f"A recipe: a JSON or YAML file, or one of {', '.join(RECIPES)}."
Recipe = Annotated[str, option("NAME|FILE", RECIPE_HELP, "chosen by the data", complete_name_or_path(RECIPES))]
RUN_MODEL_HELP = "A model: a name such as S/16, or a JSON or YAML file of its config."
RunModel = Annotated[
    str, option("NAME|FILE", RUN_MODEL_HELP, "that of the weights or the recipe", complete_name_or_path(MODELS))
]
WEIGHTS_HELP = (
    "Weights to fine-tune: a run, a bundle, a checkpoint of another library, a short name such as dinov2-small "
    "(see vitral models), or hf:owner/name."
)
Weights = Annotated[str, option("WEIGHTS", WEIGHTS_HELP, "random weights", complete_weights, "--weights", "--from")]
ARCH_HELP = "The architecture of a weight file by its name in timm, such as vit_base_patch16_224."
Architecture = Annotated[str, option("NAME", ARCH_HELP, "by the tensors")]
KEY_HELP = "The set of weights to read, in a file with several, such as state_dict_ema."
WeightsKey = Annotated[str, option("KEY", KEY_HELP, "the only one")]
SIZE_HELP = "Image size in pixels: 64, or 224x320 (height x width)."
ImageSize = Annotated[str, option("SIZE", SIZE_HELP, "that of the recipe or the weights")]
UNLABELED_TASKS = ", ".join(TASKS[1:])
TASK_HELP = f"What to train for: {TASKS[0]}; or without labels {UNLABELED_TASKS}."
Task = Annotated[str, option("KIND", TASK_HELP, OF_RECIPE, complete_from(TASKS))]
Settings = Annotated[list[str], settings_option("Set any setting by its path, such as optimizer.lr=1e-3; repeatable.")]
