import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.runs.small import SETTINGS, begin, photos, recipe_and_samples
from vitral.core.config import override
from vitral.data.loading.sampler import SINGLE_PROCESS, Sequential, Shuffled, World
from vitral.evaluation.linear_probe import fit_head
from vitral.recipes.recipe import Recipe
from vitral.runs.build import build_eval_loader, build_loader, build_run, build_train_images, num_workers, select_device
from vitral.runs.train import resume
from vitral.training.checkpoints.checkpoint import checkpoint_path
from vitral.training.distributed.process_group import ProcessGroup
from vitral.weights.bundle import read_bundle

HERE = ProcessGroup(torch.device("cpu"))


def test_training_is_shuffled_and_all_else_comes_in_order(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    train, val = (build_loader(recipe, samples, split, SINGLE_PROCESS) for split in ("train", "val"))
    assert (train.plan.order, train.pipeline.crop) == (Shuffled(), recipe.images.crop)
    assert (val.plan.order, val.pipeline.crop) == (Sequential(), recipe.images.eval_crop)
    assert build_loader(recipe, samples, "val", World(rank=1, size=2)).plan.max_rows == 3


def test_the_first_look_sees_each_training_image_once_and_still(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    look = build_train_images(recipe, samples, HERE)
    labels = torch.cat([portion.labels for portions in look.batches() for portion in portions])
    assert labels.tolist() == [item.label for item in samples.of("train")]
    assert build_eval_loader(recipe, samples, "train", SINGLE_PROCESS).pipeline.crop == recipe.images.eval_crop
    seen = [next(iter(look.batches()))[0].images for _ in range(2)]
    assert torch.equal(seen[0], seen[1])


def test_the_head_is_fitted_as_the_linear_judge_would(tmp_path: Path) -> None:
    photos(tmp_path)
    recipe, samples = recipe_and_samples(tmp_path, "seed=3")
    features, labels = torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 1])
    found, expected = (
        build_train_images(recipe, samples, HERE).fit(features, labels),
        fit_head(features, labels, 2, seed=3),
    )
    assert all(torch.equal(here, there) for here, there in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("tuning", "distributed"), [("lora", "fsdp"), ("lp_ft", "ddp")])
def test_two_processes_tune_as_one_does_and_one_goes_on_with_it(home: Path, tuning: str, distributed: str) -> None:
    begin(home, out="first")
    settings = (
        f"from={home / 'first'}", f"finetune={tuning}", f"distributed={distributed}", "epochs=2", "batch_size=6",
        "task.mixing=none", "checkpoints.every_seconds=0", "checkpoints.keep=20",
    )  # fmt: skip
    begin(home, *settings, out="one")
    words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitral"]
    command = [
        *several,
        "train",
        str(home / "photos"),
        "--recipe",
        "small_hundreds",
        *words,
        "--out",
        str(home / "two"),
    ]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True, timeout=180)
    alone, both = (read_bundle(home / name / "last").tensors for name in ("one", "two"))
    # Biases of keys change nothing, so their gradients are rounding alone, which Adam makes steps of.
    torch.testing.assert_close(both, alone, atol=5e-4, rtol=0)
    for late in (7, 8):
        shutil.rmtree(checkpoint_path(home / "two/checkpoints", late))
    assert resume(str(home / "two")).step == 8
    torch.testing.assert_close(read_bundle(home / "two/last").tensors, alone, atol=5e-4, rtol=0)


def test_the_weights_come_from_the_seed_alone(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))

    def first_weight(seed: int) -> torch.Tensor:
        torch.rand(seed + 1)  # whatever was drawn before
        return next(build_run(override(recipe, [f"seed={seed}"]), samples, HERE).model.parameters())

    assert torch.equal(first_weight(1), first_weight(1))
    assert not torch.equal(first_weight(1), first_weight(2))


def test_the_rate_follows_the_schedule_to_the_last_step(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), "schedule=linear", "schedule.warmup=2", "lr=0.5")
    parts = build_run(recipe, samples, HERE)
    assert parts.steps == 12
    assert [parts.update_rule.lr(step) for step in (0, 1, 2, 7)] == [0.0, 0.25, 0.5, 0.25]


def test_a_run_too_short_for_its_warm_up_is_refused(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), "schedule.warmup=12")
    with raises("config.conflict", "warmup", 12):
        build_run(recipe, samples, HERE)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_device(override(Recipe(), ["device=cpu"])) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises("config.device_unavailable", "device", "cuda", "cpu"):
        select_device(override(Recipe(), ["device=cuda"]))


def test_the_workers_are_those_asked_for() -> None:
    assert num_workers(override(Recipe(), ["workers=3"])) == 3
    assert num_workers(override(Recipe(), ["device=cpu"])) == 0
