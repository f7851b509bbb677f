"""Every task keeps the promises of a task."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.variants import small
from vitral.core.config import Config, Size, union_members
from vitral.data.transforms.mixup import CutMix, Mixing, Mixup
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.attention import Causal
from vitral.models.embed import Palette
from vitral.models.pool import MeanPool
from vitral.models.vit import Tokens
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify, LossConfig, PatchDropConfig
from vitral.tasks.selfsupervised.beit import Beit
from vitral.tasks.selfsupervised.beit import TargetConfig as BeitTarget
from vitral.tasks.selfsupervised.dino import Dino, DinoOutputs, TargetsConfig
from vitral.tasks.selfsupervised.ibot import Ibot, OwnPatchLayer, PatchHeadConfig, SeparatePatchHead
from vitral.tasks.selfsupervised.igpt import Autoregressive, Igpt, ObjectiveConfig
from vitral.tasks.selfsupervised.ijepa import Ijepa, Predictor
from vitral.tasks.selfsupervised.lejepa import Lejepa, SigRegOutputs
from vitral.tasks.selfsupervised.mae import Decoder, Mae, PixelTarget
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches, TargetConfig
from vitral.tasks.selfsupervised.moco_v3 import MocoHead, MocoV3
from vitral.tasks.selfsupervised.schedules import MomentumConfig, TemperatureConfig
from vitral.tasks.selfsupervised.simmim import SimMim
from vitral.tasks.selfsupervised.targets.codes import PatchCodes
from vitral.tasks.selfsupervised.targets.features import TeacherFeatures
from vitral.tasks.task import BaseTask, Task

UNIONS: dict[tuple[type[BaseTask], str], Any] = {
    (Classify, "loss"): LossConfig,
    (Classify, "mixing"): Mixing,
    (Classify, "patch_drop"): PatchDropConfig,
    (MaskedPatches, "target"): TargetConfig,
    (Mae, "target"): PixelTarget,
    (Dino, "targets"): TargetsConfig,
    (Dino, "momentum"): MomentumConfig,
    (Dino, "teacher_temperature"): TemperatureConfig,
    (MocoV3, "momentum"): MomentumConfig,
    (Ibot, "patch_head"): PatchHeadConfig,
    (Ibot, "targets"): TargetsConfig,
    (Ibot, "momentum"): MomentumConfig,
    (Ibot, "teacher_temperature"): TemperatureConfig,
    (Ibot, "patch_temperature"): TemperatureConfig,
    (Ijepa, "momentum"): MomentumConfig,
    (Beit, "target"): BeitTarget,
    (Igpt, "objective"): ObjectiveConfig,
}
OUTPUTS = DinoOutputs(outputs=32, hidden=24, bottleneck=8)
# What is small enough for a test, where the default is not.
SMALL: dict[type[BaseTask], dict[str, Any]] = {
    Mae: {"decoder": Decoder(width=16, depth=1, heads=2)},
    Dino: {"head": OUTPUTS},
    MocoV3: {"head": MocoHead(hidden=24, outputs=8)},
    SimMim: {"unit": Size(16, 16)},
    Ibot: {"head": OUTPUTS},
    Ijepa: {"predictor": Predictor(width=16, depth=1, heads=2)},
    Lejepa: {"head": SigRegOutputs(hidden=24, outputs=8), "slices": 16},
    Beit: {"target": PatchCodes(codes=16)},
}
SMALL_CHOICES: dict[type[Any], dict[str, Any]] = {
    OwnPatchLayer: {"outputs": 16},
    SeparatePatchHead: {"head": OUTPUTS},
    PatchCodes: {"codes": 16},
    TeacherFeatures: {"layers": 2},
}


PLAIN: dict[str, TaskConfig] = {task.__name__: task(**SMALL.get(task, {})) for task in union_members(TaskConfig)}


def variants() -> dict[str, TaskConfig]:
    """Each task with each kind of each of its choices."""
    chosen: dict[str, Any] = {
        f"{task.__name__}-{field}-{member.model_fields['kind'].default}": task(
            **SMALL.get(task, {}) | {field: member(**SMALL_CHOICES.get(member, {}))}
        )
        for (task, field), union in UNIONS.items()
        for member in union_members(union)
    }
    return {
        **chosen,
        "Classify-balanced": Classify(class_weights="balanced", mixing=CutMix()),
        "Ibot-koleo": Ibot(head=OUTPUTS, koleo=0.1),
    }


EVERY = pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(config, id=name) for name, config in PLAIN.items()),
        *(
            pytest.param(config, id=name, marks=pytest.mark.slow if number % 4 else ())
            for number, (name, config) in enumerate(variants().items())
        ),
    ],
)


def model_fields(config: TaskConfig) -> dict[str, Any]:
    """What the model of a task needs to be that the small one is not."""
    if not isinstance(config, Igpt):
        return {}
    palette = {"image_size": Size(8, 12), "stem": Palette(colors=16)}
    return palette | ({"mixer": Causal(heads=2), "pool": MeanPool()} if config.objective == Autoregressive() else {})


def built(config: TaskConfig, **fields: Any) -> Task:
    return config.build(small(**(model_fields(config) | fields)).build(), 4, (5, 2, 1, 2), CENTERED)


def batch(config: TaskConfig, size: int = 8) -> tuple[Tensor, Tensor]:
    image = model_fields(config).get("image_size", Size(32, 48))
    images = CENTERED.apply(torch.randint(0, 256, (size, 3, *image), dtype=torch.uint8))
    return images, torch.arange(size) % 4


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_every_choice_of_every_task_is_tried() -> None:
    fields = {
        (task, name)
        for task in union_members(TaskConfig)
        for name, field in task.model_fields.items()
        if len(union_members(field.annotation)) > 1
    }
    assert fields == set(UNIONS)


def test_mae_takes_a_model_without_a_class_token() -> None:
    config = Mae(**SMALL[Mae])
    task = built(config, tokens=Tokens(cls=False), pool=MeanPool())
    assert task.train()(*batch(config), rng()).loss.isfinite()


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_an_outcome_is_a_scalar_loss_with_scalar_metrics_that_are_no_part_of_the_graph(
    config: TaskConfig, training: bool
) -> None:
    loss, images, metrics = built(config).train(training)(*batch(config), rng())
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert loss.requires_grad
    assert images == 8
    for value in metrics.values():
        assert value.shape == ()
        assert not value.requires_grad
        assert 0 <= value <= 1


@EVERY
def test_a_step_lowers_the_loss_of_the_same_batch(config: TaskConfig) -> None:
    task, (images, labels) = built(config), batch(config)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
    before = task(images, labels, rng()).loss
    before.backward()
    torch.nn.utils.clip_grad_norm_(task.parameters(), 0.003)  # heads that normalize have long gradients at first
    optimizer.step()
    assert task(images, labels, rng()).loss < before


@EVERY
def test_evaluation_draws_nothing_and_does_not_depend_on_the_dice(config: TaskConfig) -> None:
    task, (images, labels) = built(config).eval(), batch(config)
    generator = rng()
    before = generator.bit_generator.state
    one = task(images, labels, generator).loss
    assert generator.bit_generator.state == before
    assert torch.equal(one, task(images, labels, rng(1)).loss)


@EVERY
def test_training_draws_from_nothing_but_the_dice(config: TaskConfig) -> None:
    task, (images, labels) = built(config), batch(config)
    state = torch.get_rng_state()
    one = task(images, labels, rng(7)).loss
    assert torch.equal(torch.get_rng_state(), state)
    np.random.seed(5)
    assert torch.equal(one, task(images, labels, rng(7)).loss)


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_no_images_cost_nothing_and_pass_a_gradient_of_nought(config: TaskConfig, training: bool) -> None:
    task = built(config).train(training)
    loss, images, metrics = task(*batch(config, 0), rng())
    assert images == 0
    assert [value.item() for value in (loss, *metrics.values())] == [0.0] * (1 + len(metrics))
    loss.backward()
    learning = [weight for weight in task.parameters() if weight.requires_grad]
    assert all(weight.grad is not None and not weight.grad.any() for weight in learning)


@EVERY
def test_state_goes_out_and_comes_back(config: TaskConfig) -> None:
    task, other, given = built(config), built(config), batch(config)
    with torch.no_grad():
        for weight in task.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    assert not torch.equal(task(*given, rng()).loss, other(*given, rng()).loss)
    other.load_state_dict(task.state_dict())
    assert torch.equal(task(*given, rng()).loss, other(*given, rng()).loss)


@EVERY
def test_images_and_labels_given_stay_as_they_were(config: TaskConfig) -> None:
    images, labels = batch(config)
    kept = images.clone(), labels.clone()
    built(config)(images, labels, rng())
    assert torch.equal(images, kept[0])
    assert torch.equal(labels, kept[1])


@EVERY
def test_a_config_comes_back_from_its_json(config: TaskConfig) -> None:
    assert type(config).from_json(config.to_json()) == config


@EVERY
def test_half_precision_inside_gives_a_full_precision_loss_near_the_same(config: TaskConfig) -> None:
    task, given = built(config), batch(config)
    expected = task(*given, rng()).loss
    with torch.autocast("cpu", torch.bfloat16):
        found = task(*given, rng()).loss
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)


def test_a_task_is_chosen_by_its_kind() -> None:
    class Run(Config):
        task: TaskConfig = Classify()

    assert Run.parse({"task": {"kind": "masked_patches"}}).task == MaskedPatches()
    assert Run.parse({"task": {"kind": "classify", "mixing": {"kind": "mixup"}}}).task == Classify(mixing=Mixup())
