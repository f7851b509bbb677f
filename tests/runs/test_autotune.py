import builtins
import time
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.runs.small import begin, photos, recipe_and_samples
from vitral.core.config import override
from vitral.models.registry import model_config
from vitral.recipes.recipe import Recipe, Steps
from vitral.runs import autotune
from vitral.runs.autotune import estimate_bytes, fit_memory, fit_time
from vitral.runs.build import build_task
from vitral.training.budget import peak_bytes, persistent_bytes
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.precision import Precision

CPU = torch.device("cpu")
HERE = ProcessGroup(CPU)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.width=192", "model.mixer.heads=3"),
        ("image_size=96", "model.stem.patch=4"),
        ("model.mlp=swiglu", "model.tokens.registers=4"),
        ("task=masked_patches",),
    ],
)
def test_the_rule_of_thumb_is_on_the_safe_side(tmp_path: Path, settings: tuple[str, ...]) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), *settings)
    task = build_task(recipe, samples, CPU)
    for rows in (1, 64):
        found = peak_bytes(task, (3, *recipe.model.image_size), rows, Precision(torch.float32, CPU))
        assert estimate_bytes(recipe, rows) > persistent_bytes(task, CPU) + found


def test_there_is_no_rule_of_thumb_for_a_resnet() -> None:
    assert estimate_bytes(Recipe(model=model_config("R50x1")), 1) == float("inf")


def test_short_memory_divides_a_batch_and_plenty_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    recipe, samples = recipe_and_samples(photos(tmp_path), "image_size=64", "batch_size=24")
    assert fit_memory(recipe, samples, HERE) == recipe
    task = build_task(recipe, samples, CPU)
    some = persistent_bytes(task, CPU) + peak_bytes(task, (3, 64, 64), 13, Precision(torch.float32, CPU))
    monkeypatch.setattr(autotune, "available_memory", lambda device: some * 2)
    fitted = fit_memory(recipe, samples, HERE)
    assert 2 <= fitted.microbatches <= 4
    assert f"{fitted.microbatches} microbatches" in caplog.text
    assert fitted.data.cache_bytes == some * 2 // 4  # no larger than the memory allows, and written down
    assert override(fitted, ["microbatches=1", f"data.cache_bytes={recipe.data.cache_bytes}"]) == recipe
    monkeypatch.setattr(autotune, "available_memory", lambda device: 1000)
    with raises("config.out_of_memory", "batch"):
        fit_memory(recipe, samples, HERE)


def test_one_process_with_little_memory_divides_the_batches_of_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class AnotherNeedsThree(ProcessGroup):
        """Says what the largest number is when another process has 3."""

        def max(self, number: int) -> int:
            return builtins.max(number, 3)

    caplog.set_level("INFO", "vitral")
    recipe, samples = recipe_and_samples(photos(tmp_path))
    assert fit_memory(recipe, samples, HERE) == recipe
    assert fit_memory(recipe, samples, AnotherNeedsThree(CPU)).microbatches == 3
    assert "3 microbatches" in caplog.text


def test_more_time_is_more_steps(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    short, long = (fit_time(recipe, samples, HERE, limit, time.monotonic()).length for limit in (20, 1200))
    assert isinstance(short, Steps)
    assert isinstance(long, Steps)
    assert long.steps > 10 * short.steps > 100


def test_a_look_at_all_training_images_takes_time_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(home, "steps=1", out="first")
    lengths = []
    monkeypatch.setattr(autotune, "measure_seconds", lambda *_: 0.1)
    monkeypatch.setattr(autotune, "_seconds_over", lambda parts, split, group: 40.0 if split == "train" else 0.0)
    for tuning in ("full", "lp_ft"):
        recipe, samples = recipe_and_samples(home / "photos", f"from={home / 'first'}", f"finetune={tuning}")
        length = fit_time(recipe, samples, HERE, 60, time.monotonic()).length
        assert isinstance(length, Steps)
        lengths.append(length.steps)
    assert lengths[0] > 2 * lengths[1] > 0


def test_no_time_at_all_is_told(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    with raises("config.time_limit_too_short", "time-limit", "1 s"):
        fit_time(recipe, samples, HERE, 1, began=time.monotonic() - 60)
