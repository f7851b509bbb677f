"""What learns and what does not, for every kind of finetune."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import vitral
from tests.errors import raises
from vitral.core.config import Config, override, parse_settings, union_members
from vitral.data.transforms.preprocessing import CENTERED
from vitral.evaluation.linear_probe import fit_head
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.tasks.task import Task
from vitral.training.checkpoints.state import optimizer_tensors
from vitral.training.ema import Ema
from vitral.training.finetune import (
    FinetuneConfig,
    FullFinetune,
    HeadOnly,
    LastLayers,
    LinearProbeThenFinetune,
    Lora,
    Staged,
    TrainImages,
    TuningStage,
)
from vitral.training.loop import Microbatch, UpdateRule, train
from vitral.training.optimizers import AdamW
from vitral.training.precision import Precision

CPU = torch.device("cpu")
POOLING = ("mixer=pooling", "tokens.cls=false", "pool=mean")
SMALL = ("image_size=16", "stem.patch=8", "width=16", "depth=3", "mixer.heads=2", "head.num_classes=2")
KINDS: tuple[FinetuneConfig, ...] = tuple(kind() for kind in union_members(FinetuneConfig))
FOUR = Staged(stages=(TuningStage(layers=4),))
# How the names of the weights that may change begin, those of the task's model.
FREE: dict[str, tuple[str, ...]] = {
    "full": ("",),
    "lp_ft": ("",),
    "staged": ("",),
    "head": ("head.",),
    "last_layers": ("blocks.1.", "blocks.2.", "norm.", "pool.", "head."),
    "lora": ("head.",),
}


class Holder(Config):
    """As a recipe has it."""

    finetune: FinetuneConfig = FullFinetune()


def task_of(config: TaskConfig = Classify(), *settings: str) -> Task:  # noqa: B008, a frozen value
    torch.manual_seed(0)
    model = vitral.create_model("Ti/16", settings=parse_settings([*SMALL, *settings]))
    torch.nn.init.normal_(model.head.get_parameter("linear.weight"))
    return config.build(model, 2, (1, 1), CENTERED)


def portion(seed: int = 0, images: int = 6) -> Microbatch:
    """Dark and bright images, which are easy to tell."""
    labels = torch.arange(images) % 2
    noise = torch.randn(images, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return Microbatch(noise + labels[:, None, None, None], labels, 1.0, np.random.default_rng(seed), seed)


def steps(task: Task, count: int = 4) -> dict[str, Tensor]:
    """Take some steps with decay and an average; what the optimizer remembers of them."""
    optimizer, average = AdamW(lr=1e-2, weight_decay=0.5).build(task), Ema(decay=0.5).build(count)
    descent = UpdateRule(optimizer, lambda step: 1e-2, 1.0, Precision(torch.float32, CPU))
    for step in range(count):
        train(task, iter([[portion(step)]]), descent, 0, 1, [])
        average.update(task, step)
    with average.applied_to(task):
        pass
    return optimizer_tensors(optimizer)


@pytest.mark.parametrize("tuning", KINDS)
def test_what_is_frozen_stays_to_the_bit_and_all_else_learns(tuning: FinetuneConfig) -> None:
    before = {name: weight.clone() for name, weight in task_of().model.state_dict().items()}
    task = task_of()
    tuning.apply(task)
    remembered = steps(task)
    after = {
        name.replace("parametrizations.weight.original", "weight"): w for name, w in task.model.state_dict().items()
    }
    for name, weight in before.items():
        assert torch.equal(weight, after[name]) != name.startswith(FREE[tuning.kind]), name
    learners = {name for name, weight in task.named_parameters() if weight.requires_grad}
    assert {address.rpartition("/")[0] for address in remembered} == learners


def test_adapters_learn_where_the_weights_under_them_do_not() -> None:
    task = task_of()
    Lora(rank=3).apply(task)
    before = {name: weight.clone() for name, weight in task.named_parameters()}
    steps(task)
    adapters = {name for name in before if name.endswith(("up.weight", "down.weight"))}
    assert len(adapters) == 2 * 4 * 3
    assert all(not torch.equal(before[name], task.get_parameter(name)) for name in adapters)


@pytest.mark.parametrize("tuning", KINDS)
def test_the_plain_state_is_that_of_an_ordinary_model_that_answers_the_same(tuning: FinetuneConfig) -> None:
    task, plain = task_of(), task_of()
    tuning.apply(task)
    steps(task)
    plain.model.load_state_dict(tuning.merge_state(task.model.state_dict()))
    with torch.no_grad():
        for each in (task, plain):
            each.eval().requires_grad_(False)  # or torch would round otherwise
        assert torch.equal(plain.model(portion().images), task.model(portion().images))


@pytest.mark.parametrize("tuning", KINDS)
def test_what_a_task_froze_itself_stays_frozen(tuning: FinetuneConfig) -> None:
    task = task_of(MaskedPatches())
    tuning.apply(task)
    assert not any(weight.requires_grad for weight in task.model.get_submodule("head").parameters())
    assert task.get_parameter("mask").requires_grad


LOOK = TrainImages(lambda: [[portion()], [portion(1)]], lambda rows: rows, True, partial(fit_head, classes=2, seed=0))


@pytest.mark.parametrize("tuning", KINDS)
def test_before_the_first_step_a_head_is_fitted_where_that_was_asked_for(tuning: FinetuneConfig) -> None:
    task = task_of()
    tuning.apply(task)
    before = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    words = tuning.prepare(task, LOOK)
    changed = {name for name, tensor in task.state_dict().items() if not torch.equal(tensor, before[name])}
    if isinstance(tuning, LinearProbeThenFinetune | Staged):
        assert changed == {"model.head.linear.weight", "model.head.linear.bias"}
        assert "100.0%" in words
        assert "12 images" in words
        assert task.eval()(*portion(2)[:2], np.random.default_rng(0)).metrics["accuracy"] > 0.8
        assert all(weight.requires_grad for weight in task.parameters())
    else:
        assert (words, changed) == ("", set())
        assert not tuning.needs_train_images


@pytest.mark.parametrize("tuning", KINDS)
def test_only_everything_can_start_from_nothing(tuning: FinetuneConfig) -> None:
    model = model_config("Ti/16")
    tuning.check("runs/a", model, Classify())
    if isinstance(tuning, FullFinetune):
        tuning.check("", model, Classify())
    else:
        with raises("config.missing_value", "finetune", "--weights"):
            tuning.check("", model, Classify())


@pytest.mark.parametrize(
    ("tuning", "settings", "task", "code", "values"),
    [
        (LastLayers(count=4), (), Classify(), "config.out_of_range", ("finetune.count", 4, 3)),
        (LinearProbeThenFinetune(), (), MaskedPatches(), "config.unsupported", ("finetune", "masked_patches")),
        (LinearProbeThenFinetune(), ("head=tanh",), Classify(), "config.unsupported", ("finetune", "tanh")),
        (Staged(), (), MaskedPatches(), "config.unsupported", ("finetune", "masked_patches")),
        (Staged(), ("head=tanh",), Classify(), "config.unsupported", ("finetune", "tanh")),
        (FOUR, (), Classify(), "config.out_of_range", ("finetune.stages", 4, 3)),
        (Lora(modules=("qkv",)), POOLING, Classify(), "config.unsupported", ("finetune.modules", "qkv")),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    tuning: FinetuneConfig, settings: tuple[str, ...], task: TaskConfig, code: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values):
        tuning.check("runs/a", model_config("Ti/16", settings=parse_settings([*SMALL, *settings])), task)


@pytest.mark.parametrize("tuning", KINDS)
def test_a_resnet_has_a_head_but_no_layers_to_choose(tuning: FinetuneConfig) -> None:
    model = Resnet()
    if isinstance(tuning, LastLayers | Lora | Staged):
        with raises("config.unsupported", "finetune", "ResNet"):
            tuning.check("runs/a", model, Classify())
    else:
        tuning.check("runs/a", model, Classify())


def test_the_head_of_a_resnet_learns_alone() -> None:
    model = vitral.create_model("R50x1", settings={"image_size": 32, "layers": [1, 1, 1, 1], "head.num_classes": 2})
    task = Classify().build(model, 2, (1, 1), CENTERED)
    HeadOnly().apply(task)
    learners = [name for name, weight in task.named_parameters() if weight.requires_grad]
    assert learners == ["model.head.linear.weight", "model.head.linear.bias"]


def test_settings_choose_the_kind_and_its_numbers() -> None:
    found = override(
        Holder(), ["finetune=lora", "finetune.rank=4", "finetune.alpha=2", 'finetune.modules=["qkv","mlp"]']
    ).finetune
    assert found == Lora(rank=4, alpha=2, modules=("qkv", "mlp"))
    assert found.scale == 0.5
    assert Holder.from_json(Holder(finetune=found).to_json()).finetune == found
    assert override(Holder(), ["finetune=last_layers", "finetune.count=5"]).finetune == LastLayers(count=5)


@pytest.mark.parametrize("firsts", [(), (1,), (0, 3, 3), (0, 4, 2)])
def test_stages_out_of_order_are_refused(firsts: tuple[int, ...]) -> None:
    with raises("config.conflict", "stages"):
        Staged(stages=tuple(TuningStage(first=first) for first in firsts))


def test_stages_that_a_shorter_run_does_not_reach_are_left_out() -> None:
    last, whole = TuningStage(layers=2, views=1), TuningStage(first=6)
    assert Staged(stages=(last, whole)).spans(9) == [(last, 0, 6), (whole, 6, 9)]
    assert Staged(stages=(last, whole)).spans(6) == [(last, 0, 6)]
    assert Staged().spans(9) == [(TuningStage(), 0, 9)]


@pytest.mark.parametrize(
    ("setting", "code", "field"),
    [
        ("finetune.modules=[]", "config.missing_value", "finetune.modules"),
        ('finetune.modules=["head"]', "config.unknown_name", "finetune.modules"),
        ("finetune.rank=0", "config.out_of_range", "finetune.rank"),
    ],
)
def test_a_wrong_number_is_named(setting: str, code: str, field: str) -> None:
    with raises(code, field):
        override(Holder(), ["finetune=lora", setting])
