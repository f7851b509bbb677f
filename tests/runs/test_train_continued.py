"""Training that continues from a checkpoint of the authors of a method, as their scripts write it."""

from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.runs.small import photos
from tests.weights.formats.test_pretraining import TASKS, nested, read_step
from vitral.models import Vit
from vitral.training.checkpoints.checkpoint import open_checkpoint
from vitral.weights.formats.pretraining import LAYOUTS, flat_tensors, restored_state

WIDER = {16: 192, 32: 384, 48: 576}  # the width, that of the hidden layer, and three times the width


def checkpoint(kind: str, folder: Path) -> Path:
    """A file with the tensors of the authors' checkpoint, of a width whose number of heads is known."""
    path = folder / "checkpoint.pth"
    tensors = {}
    for name, each in read_step(kind).groups["weights"].items():
        kept = 2 if "pos_embed" in name else 0  # the number of positions is no width
        tensors[name] = torch.rand([*each.shape[:kept], *(WIDER.get(side, side) for side in each.shape[kept:])])
    torch.save(nested(tensors), path)
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", TASKS)
def test_a_checkpoint_of_the_authors_is_trained_on_with_all_its_parts(kind: str, tmp_path: Path) -> None:
    path = checkpoint(kind, tmp_path)
    settings: dict[str, object] = {
        "task": kind, "batch_size": 4, "workers": 0, "threads": 1, "checkpoints.keep": 9,
        "checkpoints.every_seconds": 0, "allow_pickle": True, "weights": str(path),
    }  # fmt: skip
    run = vitral.train(photos(tmp_path / "photos"), out=tmp_path / "run", steps=1, settings=settings)
    start = open_checkpoint(run.folder.checkpoints / "step-00000000").load().tensors["task"]
    found = dict(flat_tensors(torch.load(path)))
    model = run.recipe.model
    assert isinstance(model, Vit)
    expected = restored_state(kind, model, start, found, path)
    assert {name.split(".")[0] for name in expected} > {"model"}
    for name, tensor in expected.items():
        torch.testing.assert_close(start[name], tensor, rtol=0, atol=0, msg=name)


def test_settings_that_do_not_fit_the_checkpoint_are_refused(tmp_path: Path) -> None:
    path = checkpoint("dino", tmp_path)
    settings = {"task": "dino", "task.head.outputs": 25, "allow_pickle": True}
    with raises("weights.shape_mismatch", "25", "24"):
        vitral.train(
            photos(tmp_path / "photos"),
            out=tmp_path / "run",
            steps=1,
            weights=str(path),
            batch_size=4,
            settings=settings,
        )


def test_an_encoder_alone_is_no_checkpoint_of_a_training() -> None:
    assert set(LAYOUTS) == set(TASKS)
