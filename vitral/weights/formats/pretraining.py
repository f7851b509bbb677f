"""Checkpoints of pre-training by the authors of MAE, DINO, iBOT, MoCo v3 and I-JEPA, with all parts of the training.

Beside the encoder, which `facebook` reads alone, they have decoders, heads, teachers and centers. Here each tensor of
our task is found in such a file, so that training continues. The state of the optimizer is not read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.models.vit import Vit
from vitral.weights.formats.facebook import Dino
from vitral.weights.formats.rules import TIMM_LAYER, Names, Weights, import_tensors, match_names
from vitral.weights.tensors import is_pickle, read_pickle, read_safetensors

MODULE = re.compile(r"(^|\.)module\.")  # which DistributedDataParallel puts before names
DECODER_HEADS = 16  # of MAE, whatever the encoder
OPTIMIZERS = {"optimizer", "opt", "scaler", "fp16_scaler"}  # entries that are not read
LAYER = {ours.removeprefix("blocks.*."): str(theirs).removeprefix("blocks.*.") for ours, theirs in TIMM_LAYER.items()}


@dataclass(frozen=True)
class PretrainingLayout:
    """Where the parts of a task are in a checkpoint of its authors."""

    title: str
    marks: tuple[str, ...]  # beginnings of names, all of which such a file has
    encoders: Mapping[str, str]  # our module, and what their names begin with
    names: Names  # of all other tensors: ours and theirs
    ignored: tuple[str, ...] = ()  # beginnings of names within an encoder that are not of it
    fixed_positions: bool = False  # which the authors do not train


def renamed_layers(ours: str, theirs: str) -> dict[str, str]:
    """The names of the layers of a decoder or predictor."""
    return {f"{ours}.blocks.*.{own}": f"{theirs}.*.{other}" for own, other in LAYER.items()}


def head_names(ours: str, theirs: str) -> dict[str, str]:
    """The names of a head of DINO."""
    layers = {f"{ours}.layers.{number}": f"{theirs}.mlp.{number}" for number in (0, 2, 4)}
    return layers | last_names(f"{ours}.last", f"{theirs}.last_layer")


def last_names(ours: str, theirs: str) -> dict[str, str]:
    """The names of a weight-normed layer."""
    return {f"{ours}.weight": f"{theirs}.weight_v", f"{ours}.length": f"{theirs}.weight_g"}


def norm_names(ours: str, theirs: str, count: int) -> dict[str, str]:
    """The names of so many linear layers, each with a batch norm, in a sequence with activations."""
    found: dict[str, str] = {}
    for number in range(count):
        linear, norm = 3 * number, 3 * number + 1
        found |= {f"{ours}.{linear}": f"{theirs}.{linear}"}
        found |= {f"{ours}.{norm}.{each}": f"{theirs}.{norm}.{each}" for each in ("weight", "bias")}
        found |= {f"{ours}.{norm}.mean": f"{theirs}.{norm}.running_mean"}
        found |= {f"{ours}.{norm}.variance": f"{theirs}.{norm}.running_var"}
    return found


STUDENT, TEACHER = "student.backbone.", "teacher.backbone."
LAYOUTS: Mapping[str, PretrainingLayout] = {
    "mae": PretrainingLayout(
        title="facebook's MAE",
        marks=("decoder_embed.", "decoder_pred."),
        encoders={"model": ""},
        names={
            "decoder.project": "decoder_embed",
            "decoder.mask": "mask_token",
            "decoder.norm": "decoder_norm",
            "decoder.predict": "decoder_pred",
            **renamed_layers("decoder", "decoder_blocks"),
        },
        ignored=("decoder_", "mask_token"),
        fixed_positions=True,
    ),
    "dino": PretrainingLayout(
        title="facebook's DINO",
        marks=("student.head.", "teacher.head.", "dino_loss.center"),
        encoders={"model": STUDENT, "teacher.model": TEACHER},
        names={
            **head_names("head", "student.head"),
            **head_names("teacher.head", "teacher.head"),
            "targets.center": "dino_loss.center",
        },
    ),
    "ibot": PretrainingLayout(
        title="iBOT",
        marks=("student.head.", "teacher.head.", "ibot_loss.center"),
        encoders={"model": STUDENT, "teacher.model": TEACHER},
        names={
            "mask": "student.backbone.masked_embed",
            **head_names("head.pooled", "student.head"),
            **head_names("teacher.head.pooled", "teacher.head"),
            **last_names("head.patches.last", "student.head.last_layer2"),
            **last_names("teacher.head.patches.last", "teacher.head.last_layer2"),
            "targets.center": "ibot_loss.center",
            "patch_targets.center": "ibot_loss.center2",
        },
        ignored=("masked_embed",),
    ),
    "moco_v3": PretrainingLayout(
        title="facebook's MoCo v3",
        marks=("base_encoder.head.", "momentum_encoder.head.", "predictor."),
        encoders={"model": "base_encoder.", "teacher.model": "momentum_encoder."},
        names={
            **norm_names("projection", "base_encoder.head", 3),
            **norm_names("teacher.head", "momentum_encoder.head", 3),
            **norm_names("prediction", "predictor", 2),
        },
        ignored=("head.",),
        fixed_positions=True,
    ),
    "ijepa": PretrainingLayout(
        title="facebook's I-JEPA",
        marks=("encoder.", "predictor.predictor_embed.", "target_encoder."),
        encoders={"model": "encoder.", "teacher.model": "target_encoder."},
        names={
            "predictor.embed": "predictor.predictor_embed",
            "predictor.mask": "predictor.mask_token",
            "predictor.norm": "predictor.predictor_norm",
            "predictor.predict": "predictor.predictor_proj",
            **renamed_layers("predictor", "predictor.predictor_blocks"),
        },
        fixed_positions=True,
    ),
}


def read_training_parts(kind: str, file: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint of the authors of a task; none if it is another file, or holds the encoder alone."""
    layout = LAYOUTS.get(kind)
    if layout is None or not (is_pickle(file) or file.suffix == ".safetensors"):
        return {}
    found = dict(flat_tensors(read_pickle(file) if is_pickle(file) else read_safetensors(file, "copy it again")))
    return found if has_training_parts(layout, found) else {}


def flat_tensors(content: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a file by their whole names, without the wrappers of training scripts."""
    if isinstance(content, Tensor):
        yield MODULE.sub(r"\1", prefix), content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            if not prefix and name in OPTIMIZERS:
                continue
            inner = prefix if not prefix and name in {"model", "state_dict"} else f"{prefix}.{name}" if prefix else name
            yield from flat_tensors(value, str(inner))


def has_training_parts(layout: PretrainingLayout, found: Weights) -> bool:
    """Whether a file is a whole checkpoint of this pre-training."""
    return all(any(name.startswith(mark) for name in found) for mark in layout.marks)


def restored_state(kind: str, model: Vit, own: Weights, found: Weights, where: Path) -> dict[str, Tensor]:
    """The state of a task, whose tensors are `own`, from the tensors of a checkpoint of its authors."""
    layout, state = LAYOUTS[kind], dict[str, Tensor]()
    for module, prefix in layout.encoders.items():
        inside = {name.removeprefix(prefix): each for name, each in found.items() if name.startswith(prefix)}
        theirs = {name: each for name, each in inside.items() if not name.startswith(layout.ignored or "\0")}
        mine = {name.removeprefix(f"{module}."): each for name, each in own.items() if name.startswith(f"{module}.")}
        hint = "leave --model and --image-size out: the checkpoint has its own"
        read = import_tensors(Dino().rules(model, mine), mine, theirs, f"{where}: {prefix or 'encoder'}", hint)
        state |= {f"{module}.{name}": each for name, each in read.items()}
    for name, names in match_names((each for each in own if each not in state), layout.names):
        if names[0] not in found:
            message = f"has no {names[0]}, which the task {kind} needs for {name}"
            hint = "give the settings of the task with which it was trained"
            raise WeightsError(message, code="weights.missing_tensor", where=where, hint=hint)
        tensor = found[names[0]]
        if tensor.numel() != own[name].numel() or tensor.squeeze().shape != own[name].squeeze().shape:
            message = f"{names[0]} is {tuple(tensor.shape)}, and the task has {tuple(own[name].shape)} for {name}"
            hint = "give the settings of the task with which it was trained: of its head, decoder or predictor"
            raise WeightsError(message, code="weights.shape_mismatch", where=where, hint=hint)
        state[name] = tensor.reshape(own[name].shape)
    return {name: tensor.to(own[name].dtype) for name, tensor in state.items()}


def inferred_settings(kind: str, model: Vit, found: Weights) -> dict[str, object]:
    """The settings of a task that the shapes in a checkpoint of its authors show, by their paths in a recipe."""

    def rows(name: str) -> int:
        return found[name].shape[0]

    def head(theirs: str) -> dict[str, object]:
        sizes = {"outputs": "last_layer.weight_v", "hidden": "mlp.0.weight", "bottleneck": "mlp.4.weight"}
        return {f"task.head.{ours}": rows(f"{theirs}.{other}") for ours, other in sizes.items()}

    def layers(prefix: str) -> int:
        return len({name.split(".")[prefix.count(".") + 1] for name in found if name.startswith(f"{prefix}.")})

    heads = getattr(model.mixer, "heads", 1)
    if kind == "mae":
        width, depth = rows("decoder_embed.weight"), layers("decoder_blocks")
        return {"task.decoder.width": width, "task.decoder.depth": depth, "task.decoder.heads": DECODER_HEADS}
    if kind == "dino":
        return head("student.head")
    if kind == "ibot":
        first, second = (found[f"student.head.{name}.weight_v"] for name in ("last_layer", "last_layer2"))
        if torch.equal(first, second):
            return {**head("student.head"), "task.patch_head": "shared"}
        own = {"task.patch_head": "own_layer", "task.patch_head.outputs": len(second)}
        return {**head("student.head"), **own}
    if kind == "moco_v3":
        return {
            "task.head.hidden": rows("base_encoder.head.0.weight"),
            "task.head.outputs": rows("base_encoder.head.6.weight"),
        }
    width, depth = rows("predictor.predictor_embed.weight"), layers("predictor.predictor_blocks")
    return {"task.predictor.width": width, "task.predictor.depth": depth, "task.predictor.heads": heads}
