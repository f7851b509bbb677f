"""The numbers of the paper's tables, against the recipes."""

import pytest

from vitral.models.head import TanhHead
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.recipes.paper import (
    JFT,
    finetune_cifar,
    finetune_flowers,
    finetune_imagenet,
    finetune_vtab,
    paper_imagenet,
    paper_imagenet21k,
    paper_jft,
    paper_masked,
)
from vitral.recipes.recipe import Recipe
from vitral.tasks.classify import Classify


def last_rate(recipe: Recipe, steps: int = 10_000_000) -> float:
    """The rate after the last step of a long run."""
    return recipe.optimizer.lr * recipe.schedule.lr_factor(steps, steps)


@pytest.mark.parametrize(
    ("recipe", "epochs", "lr", "weight_decay", "kind", "dropout", "clip"),
    [
        (paper_imagenet(), 300, 3e-3, 0.3, "cosine", 0.1, 1.0),
        (paper_imagenet("L/16"), 300, 3e-3, 0.3, "cosine", 0.1, 1.0),
        (paper_imagenet21k(), 90, 1e-3, 0.03, "linear", 0.1, "none"),
        (paper_jft(), 7, 8e-4, 0.1, "linear", 0.0, "none"),
        (paper_jft("L/32"), 7, 6e-4, 0.1, "linear", 0.0, "none"),
        (paper_jft("L/16"), 14, 4e-4, 0.1, "linear", 0.0, "none"),
        (paper_jft("H/14"), 14, 3e-4, 0.1, "linear", 0.0, "none"),
        (paper_jft("R50+L/32"), 7, 2e-4, 0.1, "linear", 0.0, "none"),
    ],
)
def test_table_3(
    recipe: Recipe, epochs: int, lr: float, weight_decay: float, kind: str, dropout: float, clip: float | str
) -> None:
    assert recipe.length.model_dump() == {"kind": "epochs", "epochs": epochs}
    assert recipe.optimizer.model_dump(include={"kind", "lr", "weight_decay", "betas"}) == {
        "kind": "adamw", "lr": lr, "weight_decay": weight_decay, "betas": (0.9, 0.999),
    }  # fmt: skip
    assert (recipe.batch_size, recipe.clip, recipe.schedule.warmup, recipe.schedule.kind) == (4096, clip, 10_000, kind)
    assert isinstance(recipe.model, Vit)
    assert isinstance(recipe.model.head, TanhHead)
    assert recipe.model.tokens.dropout == recipe.model.mlp.dropout == dropout


@pytest.mark.parametrize("model", JFT)
def test_every_model_of_table_3_ends_at_the_same_rate(model: str) -> None:
    assert last_rate(paper_jft(model)) == pytest.approx(1e-5)


def test_the_row_of_table_3_is_found_by_any_name_of_a_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="vitral"):
        assert paper_jft("vit_large_patch16_224").optimizer.lr == paper_jft("ViT-L/16").optimizer.lr == 4e-4
    assert not caplog.records


def test_a_model_that_table_3_lacks_is_trained_like_b16_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="vitral"):
        recipe = paper_jft("S/16")
    assert (recipe.optimizer.lr, recipe.length) == (8e-4, paper_jft("B/16").length)
    assert all(word in caplog.text for word in ("S/16", "B/16", "0.0008"))


@pytest.mark.parametrize(("model", "side"), [("H/14", 378), ("B/16", 384), ("B/32", 384), ("R50+B/32", 384)])
def test_fine_tuning_takes_the_nearest_multiple_of_the_patch_and_logs_it(
    model: str, side: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="vitral"):
        assert finetune_imagenet(model).model.image_size == (side, side)
    assert (f"{side}x{side}" in caplog.text) == (side != 384)


def test_a_baseline_keeps_its_linear_head() -> None:
    assert isinstance(paper_jft("R152x2").model, Resnet)
    assert paper_jft("R152x2").model.head.kind == "linear"


@pytest.mark.parametrize(
    ("recipe", "steps", "held"),
    [
        (finetune_imagenet(), 20_000, 0.01),
        (finetune_cifar(), 10_000, 0.02),
        (finetune_flowers(), 500, 0.1),
        (finetune_vtab(), 2_500, 0.2),
    ],
)
def test_table_4(recipe: Recipe, steps: int, held: float) -> None:
    assert recipe.length.model_dump() == {"kind": "steps", "steps": steps}
    assert recipe.optimizer.model_dump(include={"kind", "momentum", "weight_decay"}) == {
        "kind": "sgd", "momentum": 0.9, "weight_decay": 0.0,
    }  # fmt: skip
    assert (recipe.batch_size, recipe.clip, recipe.schedule.kind) == (512, 1.0, "cosine")
    assert recipe.model.image_size == (384, 384)
    assert recipe.data.split.fraction == held


@pytest.mark.parametrize(
    ("recipe", "loss", "bias"),
    [(paper_imagenet(), "softmax", 0.0), (paper_imagenet21k(), "sigmoid", -10.0), (paper_jft(), "sigmoid", -10.0)],
)
def test_many_labels_are_answered_one_by_one(recipe: Recipe, loss: str, bias: float) -> None:
    assert isinstance(recipe.task, Classify)
    assert recipe.task.loss.kind == loss
    assert recipe.model.head.model_dump()["bias"] == bias


def test_masked_patches_learn_as_in_appendix_b() -> None:
    recipe = paper_masked()
    assert recipe.task.model_dump() == {
        "kind": "masked_patches", "target": {"kind": "mean_color"}, "draws": "by_image",
    }  # fmt: skip
    assert (recipe.optimizer.lr, recipe.batch_size, recipe.schedule.warmup) == (2e-4, 4096, 10_000)
