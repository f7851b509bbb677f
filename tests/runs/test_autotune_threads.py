"""The number of threads of a run is recorded before its first step, and used again."""

from pathlib import Path

import torch

from tests.runs.small import begin, content
from vitral.recipes.recipe import load_recipe
from vitral.runs.train import resume, train


def test_threads_are_recorded_and_used_again_whatever_is_set_then(home: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert begin(home).recipe.threads == 2
        torch.set_num_threads(1)
        assert load_recipe(home / "run/recipe.json").threads == 2
        resume(home / "run")
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        train(recipe=home / "run/recipe.json", out=str(home / "again"))
        assert torch.get_num_threads() == 2
        assert content(home / "again") == content(home / "run")
    finally:
        torch.set_num_threads(before)
