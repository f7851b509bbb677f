"""Answers: those of the model by itself, one for each image, whatever the batches and processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.data.loading.photos import photos
from tests.models.tiny import tiny_model
from vitral.core.config import Size
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Sequential, Shuffled, World
from vitral.data.samples import Samples
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.subject import Predictions, predict
from vitral.models.base import Model

HOW = Preprocessing(image_size=Size(16, 16))
CPU = torch.device("cpu")


def small_model() -> Model:
    model = tiny_model(0.5)
    nn.init.normal_(model.get_parameter("head.linear.weight"))  # a head of zeros would answer every image alike
    return model


def loader_of(samples: Samples, batch: int, world: World, order: Sequential | Shuffled) -> Loader:
    items = samples.of("train")
    plan = SamplingPlan(np.array([item.label for item in items]), order, batch, seed=0, world=world)
    return Loader(
        items, samples.store, ImagePipeline(HOW.image_size, HOW.decoding, HOW.crop), plan, workers=0, cache_bytes=2**20
    )


def alone(rows: Tensor) -> Tensor:
    return rows


def answered(
    model: Model, samples: Samples, batch: int, world: World, gather: Callable[[Tensor], Tensor]
) -> Predictions:
    loader = loader_of(samples, batch, world, Sequential())
    return predict(model, loader, HOW.normalize, CPU, gather, lambda images: None)


@pytest.mark.parametrize("batch", [1, 4, 50])
def test_the_answers_are_those_of_the_model_to_each_file_by_itself(tmp_path: Path, batch: int) -> None:
    samples, model = photos(tmp_path), small_model()
    found = answered(model, samples, batch, World(), alone)
    model.eval()
    with torch.no_grad():
        truth = [model(HOW.tensor(samples.read(item), item.name)) for item in samples.of("train")]
    torch.testing.assert_close(found.logits, torch.cat(truth))
    assert found.logits.std() > 0.01
    assert found.logits.dtype == torch.float32
    assert found.labels.tolist() == [item.label for item in samples.of("train")]
    assert found.indices.tolist() == list(range(11))


class Meeting:
    """Puts the rows of as many threads together as there are processes, each with rows of its own."""

    def __init__(self, size: int) -> None:
        self.rows: list[Tensor] = [torch.empty(0)] * size
        self.barrier = Barrier(size, timeout=20)

    def gather(self, rank: int) -> Callable[[Tensor], Tensor]:
        def gathered(rows: Tensor) -> Tensor:
            self.rows[rank] = rows
            self.barrier.wait()
            whole = torch.cat(self.rows)
            self.barrier.wait()
            return whole

        return gathered


@pytest.mark.parametrize(("size", "batch"), [(2, 4), (3, 5), (13, 13)])
def test_processes_together_have_the_answers_of_one(tmp_path: Path, size: int, batch: int) -> None:
    samples, model, meeting = photos(tmp_path), small_model(), Meeting(size)
    whole = answered(model, samples, 50, World(), alone)

    def work(rank: int) -> Predictions:
        world = World(rank=rank, size=size)
        return answered(deepcopy(model), samples, batch, world, meeting.gather(rank))

    with ThreadPoolExecutor(size) as threads:
        for found in threads.map(work, range(size)):
            assert torch.equal(found.indices, whole.indices)
            assert torch.equal(found.labels, whole.labels)
            torch.testing.assert_close(found.logits, whole.logits)


def test_the_model_is_left_as_it_was_found(tmp_path: Path) -> None:
    model = small_model().train()
    model.get_submodule("blocks.1").eval()
    before = [part.training for part in model.modules()]
    weights = deepcopy(model.state_dict())
    found = answered(model, photos(tmp_path), 4, World(), alone)
    assert [part.training for part in model.modules()] == before
    assert not found.logits.requires_grad
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    model(torch.zeros(1, 3, 16, 16)).sum().backward()


def test_the_mode_comes_back_when_answering_fails(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).train()
    with pytest.raises(RuntimeError):
        answered(model, photos(tmp_path), 4, World(), alone)  # type: ignore[arg-type]
    assert model.training


def test_the_images_of_each_batch_are_told(tmp_path: Path) -> None:
    told: list[int] = []
    loader = loader_of(photos(tmp_path), 4, World(), Sequential())
    predict(small_model(), loader, HOW.normalize, CPU, alone, told.append)
    assert told == [4, 4, 3]


def test_an_order_that_leaves_images_out_is_refused(tmp_path: Path) -> None:
    loader = loader_of(photos(tmp_path), 4, World(), Shuffled())
    with pytest.raises(AssertionError, match="skip or repeat"):
        predict(small_model(), loader, HOW.normalize, CPU, alone, lambda images: None)


def test_of_equal_logits_the_first_is_given() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0], [3.0, 1.0, 3.0]])
    assert Predictions(logits, torch.zeros(3, dtype=torch.int64), torch.arange(3)).predicted.tolist() == [0, 1, 0]
