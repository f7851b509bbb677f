"""Values that the shell completes.

The names are written here once more, because the rooms that define them import torch, and a completion that takes a
second is no help. A test compares them.
"""

import os
from collections.abc import Callable, Sequence

Completion = Callable[[str], list[str]]

DATASETS = (
    "sample", "fashion-mnist", "mnist", "cifar10", "cifar100", "digits", "imagenet", "imagenet-real", "oxford-pets",
    "oxford-flowers", "objectnet", "shapes-count", "shapes-location", "shapes-orientation",
)  # fmt: skip
RECIPES = (
    "sample", "fashion_mnist", "fashion_masked", "fashion_finetune", "fashion_tenth", "cifar10", "cifar100",
    "small_hundreds", "small_thousands", "small_hundred_thousands", "fashion_mae", "fashion_dino", "fashion_ibot",
    "fashion_moco_v3", "fashion_ijepa", "fashion_lejepa", "fashion_igpt", "cifar10_masked_patches", "cifar10_mae",
    "cifar10_dino", "cifar10_ibot", "cifar10_moco_v3", "cifar10_ijepa", "cifar10_lejepa", "cifar10_igpt",
    "cifar10_simmim", "cifar10_beit", "photos_masked_patches", "photos_mae", "photos_dino", "photos_ibot",
    "photos_moco_v3", "photos_ijepa", "photos_lejepa", "photos_igpt", "paper_imagenet", "paper_imagenet21k",
    "paper_jft", "paper_masked", "finetune_imagenet", "finetune_cifar", "finetune_flowers",
    "finetune_vtab", "photos", "augreg_imagenet", "augreg_imagenet21k", "plain_imagenet",
)  # fmt: skip
MODELS = (
    *(f"{size}/{patch}" for size in ("Ti", "S", "B", "L", "H", "g", "G") for patch in (14, 16, 32)),
    *("R50+B/16", "R50+L/32", "R50x1", "R101x1", "R152x2"),
)
DEVICES = ("auto", "cpu", "cuda", "mps")
ENGINES = ("eager", "compiled", "onnxruntime", "openvino")
BENCH_ENGINES = (*ENGINES, "onnxruntime int8", "openvino int8")
EVALUATORS = (
    "accuracy", "calibration", "abstention", "label_sets", "knn", "fewshot", "linear", "ood", "resolution", "tokens",
    "robustness",
)  # fmt: skip
ROBUSTNESS_PARTS = ("occlusion", "shuffle", "texture", "patch", "attack", "corruptions")
SPLITS = ("test", "val")
PREDICTION_FORMATS = ("table", "json", "jsonl", "csv")
TABLE_FORMATS = ("table", "json", "csv")
EXPORT_FORMATS = ("onnx", "openvino", "torch")
LIBRARIES = ("vitral", "timm", "google", "huggingface", "torchvision", "vit-pytorch", "labml")
SCALES = ("tiny", "small", "full")
TASKS = ("classify", "masked_patches", "mae", "simmim", "beit", "igpt", "dino", "ibot", "moco_v3", "ijepa", "lejepa")


def complete_from(choices: Sequence[str]) -> Completion:
    """Completes a value that is one of the choices."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def complete_list(choices: Sequence[str]) -> Completion:
    """Completes the last of several choices that are separated by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        unused = (choice for choice in choices if choice not in before.split(","))
        return [f"{before}{comma}{choice}" for choice in unused if choice.startswith(last)]

    return complete


def complete_name_or_path(names: Sequence[str]) -> Completion:
    """Completes a name or a path. Where no name fits, the shell completes paths itself."""

    def complete(incomplete: str) -> list[str]:
        from glob import escape, glob  # not for --help

        found = [name for name in names if name.startswith(incomplete)]
        paths = sorted(glob(f"{escape(incomplete)}*")) if found else []
        return [*found, *(f"{path}/" if os.path.isdir(path) else path for path in paths)]

    return complete


def complete_weights(incomplete: str) -> list[str]:
    """Completes the short name of published weights, or a path."""
    from vitral.weights.pretrained import PRETRAINED

    return complete_name_or_path(tuple(PRETRAINED))(incomplete)


def complete_experiment(incomplete: str) -> list[str]:
    """Completes the name of an experiment of the paper."""
    from vitral.experiments.registry import list_experiments

    return [each.name for each in list_experiments() if each.name.startswith(incomplete)]
