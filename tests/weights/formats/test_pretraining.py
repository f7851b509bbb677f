"""One step of a method equals that of its authors' code, and its checkpoint is read with all parts.

The fixtures are made by `tests/fixtures/make_authors_steps.py`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.training.distributed.race import float64
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Attention, ClassPool, Learned1d, MeanPool, Mlp, NoHead, Patches, Tokens, Vit
from vitral.tasks import TaskConfig
from vitral.tasks.selfsupervised.dino import Dino, DinoOutputs, SelfDistillation
from vitral.tasks.selfsupervised.ibot import Ibot, MaskedSelfDistillation, OwnPatchLayer
from vitral.tasks.selfsupervised.ijepa import BatchBlocks, Ijepa, JointEmbeddingPrediction, Predictor
from vitral.tasks.selfsupervised.mae import Decoder, Mae, MaskedAutoencoder
from vitral.tasks.selfsupervised.masking import RandomMask
from vitral.tasks.selfsupervised.moco_v3 import MocoHead, MocoV3
from vitral.tasks.selfsupervised.schedules import ConstantMomentum, ConstantTemperature
from vitral.tasks.task import Task
from vitral.weights.formats.pretraining import (
    LAYOUTS,
    flat_tensors,
    has_training_parts,
    inferred_settings,
    restored_state,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXACTLY = 1e-8
OUTPUTS = DinoOutputs(outputs=24, hidden=20, bottleneck=8, frozen_length=False)
WARM, PATCH_WARM = ConstantTemperature(start=0.06), ConstantTemperature(start=0.05)
TASKS: dict[str, TaskConfig] = {
    "mae": Mae(decoder=Decoder(width=16, depth=1, heads=2)),
    "dino": Dino(head=OUTPUTS, teacher_temperature=WARM, frozen_last_layer=0),
    "ibot": Ibot(
        head=OUTPUTS, patch_head=OwnPatchLayer(outputs=28), teacher_temperature=WARM, patch_temperature=PATCH_WARM
    ),
    "moco_v3": MocoV3(head=MocoHead(hidden=20, outputs=8), momentum=ConstantMomentum(start=0.9)),
    "ijepa": Ijepa(predictor=Predictor(width=12, depth=1, heads=2), targets=3),
}
EVERY = pytest.mark.parametrize("kind", TASKS)
LABELS = torch.zeros(4)


class Step(NamedTuple):
    """A step by the authors' code."""

    config: dict[str, Any]
    groups: dict[str, dict[str, Tensor]]
    loss: Tensor


def read_step(kind: str) -> Step:
    groups: dict[str, dict[str, Tensor]] = {}
    with safe_open(FIXTURES / f"step_{kind}.safetensors", "pt") as file:
        config = json.loads(file.metadata()["config"])
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = file.get_tensor(name)
    return Step(config, groups, groups["loss"][""])


def model_of(kind: str, config: dict[str, Any]) -> Vit:
    cls = kind != "ijepa"
    return Vit(
        image_size=Size(config["image"], config["image"]),
        width=config["width"],
        depth=config["depth"],
        stem=Patches(patch=Size(config["patch"], config["patch"])),
        tokens=Tokens(cls=cls),
        position=Learned1d(resampling="bicubic_offset"),
        mixer=Attention(heads=config["heads"]),
        mlp=Mlp(ratio=config["ratio"], activation="gelu"),
        pool=ClassPool() if cls else MeanPool(),
        head=NoHead(),
    )


def nested(flat: dict[str, Tensor]) -> dict[str, Any]:
    """The file as the authors write it: a level of nesting for what stands before the first dot."""
    found: dict[str, Any] = {"epoch": 3, "optimizer": {"state": {}}}
    for name, tensor in flat.items():
        first, _, rest = name.partition(".")
        found.setdefault(first, {})[rest] = tensor
    return found


def restored(kind: str, step: Step) -> Task:
    """Our task with the weights of the checkpoint."""
    model = model_of(kind, step.config)
    task = TASKS[kind].build(model.build(), 0, (), CENTERED)
    own = task.state_dict()
    found = dict(flat_tensors(nested(step.groups["weights"])))
    assert has_training_parts(LAYOUTS[kind], found)
    state = restored_state(kind, model, own, found, Path("checkpoint.pth"))
    assert set(state) == set(own)
    task.load_state_dict(state)
    task.begin_step(0.0)
    return task


def views(step: Step) -> tuple[Tensor, ...]:
    given = [step.groups["inputs"][name] for name in sorted(step.groups["inputs"]) if name.startswith("view")]
    groups = [torch.stack(given[:2], dim=1)]
    return (*groups, torch.stack(given[2:], dim=1)) if given[2:] else tuple(groups)


def loss_of(task: Task, step: Step) -> Tensor:
    """The loss of the step, with the masks of the fixture."""
    inputs, rng = step.groups["inputs"], np.random.default_rng(0)
    if isinstance(task, MaskedAutoencoder):
        order = inputs["noise"].argsort(dim=1)
        mask = RandomMask(order[:, :4], order.argsort(dim=1))
        with patch.object(task, "mask", lambda *given: mask):
            return task(inputs["images"], LABELS, rng).loss
    if isinstance(task, JointEmbeddingPrediction):
        blocks = BatchBlocks(inputs["context"], inputs["targets"])
        with patch.object(task, "draw_blocks", lambda *given: blocks):
            return task(inputs["images"], LABELS, rng).loss
    if isinstance(task, MaskedSelfDistillation):
        masks = torch.stack([inputs["mask0"], inputs["mask1"]], dim=1).flatten(2).flatten(0, 1)
        with patch.object(task, "draw_masks", lambda *given: masks.numpy()):
            return task(views(step), LABELS, rng).loss
    return task(views(step), torch.zeros(len(views(step)[0])), rng).loss


@EVERY
def test_a_step_is_that_of_the_authors_code(kind: str) -> None:
    step = read_step(kind)
    with float64():
        task = restored(kind, step)
        loss = loss_of(task, step)
        loss.backward()
        torch.testing.assert_close(loss, step.loss, rtol=0, atol=EXACTLY)
        # Gradients are mapped as weights are; those of weights that do not learn are missing in the file.
        weights = dict(flat_tensors(nested(step.groups["weights"])))
        learned = dict(flat_tensors(nested(step.groups["gradients"])))
        whole = {name: learned.get(name, torch.full_like(weight, torch.nan)) for name, weight in weights.items()}
        expected = restored_state(kind, model_of(kind, step.config), task.state_dict(), whole, Path("gradients"))
    compared = 0
    for name, weight in task.named_parameters():
        if weight.grad is None:
            assert expected[name].isnan().all(), name
        elif not name.endswith("position.table") or not LAYOUTS[kind].fixed_positions:
            torch.testing.assert_close(weight.grad, expected[name], rtol=0, atol=EXACTLY, msg=name)
            compared += 1
    assert compared > 20


def test_centers_move_as_in_the_authors_code() -> None:
    for kind in ("dino", "ibot"):
        step = read_step(kind)
        with float64():
            task = restored(kind, step)
            loss_of(task, step)
            task.end_step(0.0)
            assert isinstance(task, SelfDistillation | MaskedSelfDistillation)
            torch.testing.assert_close(task.targets.center, step.groups["after"]["center"], rtol=0, atol=EXACTLY)
            if isinstance(task, MaskedSelfDistillation):
                found = task.patch_targets.center
                torch.testing.assert_close(found, step.groups["after"]["patch_center"], rtol=0, atol=EXACTLY)


def test_the_teacher_of_moco_v3_moves_before_its_keys_are_computed() -> None:
    step = read_step("moco_v3")
    with float64():
        task = restored("moco_v3", step)
        head = torch.cat([weight.flatten() for weight in task.get_submodule("teacher.head").parameters()])
    torch.testing.assert_close(head, step.groups["after"]["teacher"], rtol=0, atol=EXACTLY)


@EVERY
def test_settings_are_inferred_from_the_shapes(kind: str) -> None:
    step = read_step(kind)
    found = inferred_settings(kind, model_of(kind, step.config), dict(flat_tensors(nested(step.groups["weights"]))))
    own = TASKS[kind].model_dump()
    assert found.pop("task.decoder.heads", 16) == 16  # no shape shows them: all of the authors have 16
    for path, value in found.items():
        field: Any = own
        for name in path.split(".")[1:]:
            field = field[name]
        assert field == value or field["kind"] == value, path
