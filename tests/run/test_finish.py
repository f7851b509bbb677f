import json
from pathlib import Path

import torch

from tests.run.small import SETTINGS, photos, recipe_and_samples
from vitral.explain.describe import describe
from vitral.run.finish import Output, described
from vitral.run.parts import parts_of
from vitral.run.start import train
from vitral.train.distributed.group import Group
from vitral.train.environment import environment
from vitral.train.folder import Folder

HERE = Group(torch.device("cpu"))


def test_the_cost_counts_a_forward_and_two_backward_passes_an_image(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    parts = parts_of(recipe, samples, HERE)
    cost = Output(Folder(tmp_path), parts, HERE).cost(step=10)
    once = describe(recipe.model)
    assert cost.images == 50
    assert cost.multiply_adds == 3 * 50 * once.multiply_adds
    assert cost.parameters == once.parameters


def test_the_last_word_is_on_images_for_testing_where_there_are_any(tmp_path: Path) -> None:
    photos(tmp_path / "photos", {"train": 12, "val": 3, "test": 5})
    run = train(str(tmp_path / "photos"), *SETTINGS, "epochs=1", recipe="small_hundreds", out=str(tmp_path / "run"))
    assert run.judgement is not None
    assert (run.judgement.split, run.judgement.accuracy.images) == ("test", 10)
    page = (tmp_path / "run/report.html").read_text()
    assert "There are no images for validation" not in page
    assert json.loads((tmp_path / "run/recipe.json").read_text())["name"] in page


def test_the_environment_leaves_out_what_is_not_there() -> None:
    facts = dict(described(environment("photos", "f" * 64, "e" * 64, "vitral train photos")))
    assert facts["fingerprint of the data"] == "f" * 64
    assert "" not in facts.values()
