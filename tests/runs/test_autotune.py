import builtins
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.runs.small import begin, photos, recipe_and_samples
from vitral.core.config import override
from vitral.models.registry import model_config
from vitral.recipes.recipe import Recipe
from vitral.runs import autotune
from vitral.runs.autotune import estimate_bytes, estimate_costs, fit_memory
from vitral.runs.build import build_task
from vitral.training.budget import peak_bytes, persistent_bytes
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.precision import Precision

CPU = torch.device("cpu")
HERE = ProcessGroup(CPU)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.width=192", "model.mixer.heads=3"),
        ("image_size=96", "model.stem.patch=4"),
        ("model.mlp=swiglu", "model.tokens.registers=4"),
        ("task=masked_patches",),
        ("model.stem=convolutions", "model.stem.widths=[8,16]"),
        ("model.stem=convolutions", "model.stem.widths=[32,64]", "model.stem.same_size=4", "image_size=64"),
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


def test_what_comes_before_and_after_the_steps_is_estimated(home: Path) -> None:
    begin(home, "steps=1", out="first")
    settings = (f"from={home / 'first'}", "batch_size=12")
    full, probed = (
        estimate_costs(*recipe_and_samples(home / "photos", *settings, f"finetune={kind}"), HERE)
        for kind in ("full", "lp_ft")
    )
    assert 0 < full.evaluation < full.least
    assert full.finish > autotune.FINISH_SECONDS
    assert full.least > full.finish + 2 * full.evaluation
    assert probed.least > probed.finish + 5 * probed.evaluation  # it reads the training images, too


def test_costs_are_by_the_clock_of_the_limit_and_only_classifiers_are_evaluated_at_the_end(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), "task=masked_patches", "batch_size=12")
    clock = iter(range(0, 1000, 7))  # seven seconds for each batch
    found = estimate_costs(recipe, samples, HERE, clock=lambda: next(clock))
    assert found.evaluation == pytest.approx(
        7 * len(samples.of("val")) / min(autotune.TRIAL_IMAGES, len(samples.of("val")))
    )
    assert found.finish == autotune.FINISH_SECONDS
