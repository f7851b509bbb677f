"""Averages of weights, against sums in float64, and their way into a model and out again."""

import copy
from math import prod

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import union_members
from vitral.training.ema import AverageConfig, BaseAverage, Ema, NoAverage, Polyak, WeightAverage

STEPS = 40


def model() -> nn.Module:
    """A model with a buffer, and a weight that is frozen."""
    torch.manual_seed(0)
    parts = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    parts[2].bias.requires_grad_(False)
    return parts


def first(parts: nn.Module) -> nn.Parameter:
    return parts.get_parameter("0.weight")


def wander(walker: nn.Module, step: int) -> None:
    """Move every weight and buffer as a step of training might, the same whenever the step is taken."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for weight in walker.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator))
        for buffer in walker.buffers():
            buffer.add_(1)


def walk(kind: BaseAverage, steps: int = STEPS) -> tuple[WeightAverage, nn.Module, list[dict[str, Tensor]]]:
    """The average after a run, the model, and the weights after each step in float64."""
    walker, average = model(), kind.build(steps)
    history = []
    for step in range(steps):
        wander(walker, step)
        average.update(walker, step)
        history.append({name: weight.detach().double() for name, weight in walker.named_parameters()})
    return average, walker, history


def test_an_average_of_another_model_takes_its_weights() -> None:
    average, walker, _ = walk(Ema(decay=0.5), steps=3)
    other = copy.deepcopy(walker)
    with torch.no_grad():
        first(other).fill_(7.0)
    before = average.tensors["0.weight"].clone()
    average.update(other, 3)
    torch.testing.assert_close(average.tensors["0.weight"], before.lerp(first(other), 1 - 4 / 13))


def test_the_exponential_average_is_the_weighted_sum_of_all_weights() -> None:
    average, _, history = walk(Ema(decay=0.8))
    kept = [min(0.8, (1 + n) / (10 + n)) for n in range(STEPS)]
    assert kept[1] == pytest.approx(2 / 11)
    assert kept[-1] == 0.8
    shares = [(1 - kept[n] if n else 1.0) * prod(kept[n + 1 :]) for n in range(STEPS)]
    assert sum(shares) == pytest.approx(1)
    assert average.count == STEPS
    for name, tensor in average.tensors.items():
        expected = sum((share * weights[name] for share, weights in zip(shares, history, strict=True)), torch.zeros(()))
        torch.testing.assert_close(tensor.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("start", "first"), [(0.0, 0), (0.5, 20), (0.76, 30), (0.99, 39)])
def test_polyaks_average_is_the_mean_from_its_start_on(start: float, first: int) -> None:
    average, _, history = walk(Polyak(start=start))
    assert average.count == STEPS - first
    for name, tensor in average.tensors.items():
        expected = torch.stack([weights[name] for weights in history[first:]]).mean(dim=0)
        torch.testing.assert_close(tensor.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_shortest_run_has_an_average(steps: int) -> None:
    average, _, _ = walk(Polyak(start=0.999), steps)
    assert average.count == 1


def test_no_average_keeps_nothing_and_changes_nothing() -> None:
    average, walker, _ = walk(NoAverage())
    before = copy.deepcopy(walker.state_dict())
    assert (average.tensors, average.count) == ({}, 0)
    with average.applied_to(walker):
        assert all(before[name].equal(tensor) for name, tensor in walker.state_dict().items())


def test_weights_are_the_models_own_until_the_first_that_counts() -> None:
    walker, average = model(), Polyak(start=0.5).build(10)
    average.update(walker, 4)
    own = first(walker).detach().clone()
    with average.applied_to(walker):
        assert first(walker).equal(own)


def test_only_weights_that_learn_are_averaged() -> None:
    average, _, _ = walk(Ema())
    assert list(average.tensors) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]


def test_the_model_has_the_averages_inside_and_its_own_weights_to_the_bit_after() -> None:
    average, walker, _ = walk(Ema(decay=0.9))
    with torch.no_grad():
        first(walker)[0] = torch.tensor([-0.0, float("nan"), 1e-45])  # bits that arithmetic would not bring back
    before = {name: tensor.clone() for name, tensor in walker.state_dict().items()}
    saved = {name: tensor.clone() for name, tensor in average.tensors.items()}
    with average.applied_to(walker):
        inside = walker.state_dict()
        assert all(inside[name].equal(tensor) for name, tensor in average.tensors.items())
        assert inside["1.running_mean"].equal(before["1.running_mean"])
        assert inside["1.num_batches_tracked"] == STEPS
    for name, tensor in walker.state_dict().items():
        assert tensor.numpy().tobytes() == before[name].numpy().tobytes()
    assert all(saved[name].equal(tensor) for name, tensor in average.tensors.items())


def test_an_evaluation_that_fails_leaves_the_model_as_it_was() -> None:
    average, walker, _ = walk(Ema(decay=0.9))
    before = first(walker).detach().clone()
    with pytest.raises(RuntimeError, match="disk"), average.applied_to(walker):
        raise RuntimeError("disk")
    assert first(walker).equal(before)


@pytest.mark.parametrize("kind", union_members(AverageConfig))
@pytest.mark.parametrize("stop", [0, 1, 29, 30, 31, STEPS])
def test_a_run_that_resumes_has_the_same_averages_to_the_bit(kind: type[BaseAverage], stop: int) -> None:
    whole, _, _ = walk(kind())
    walker, stopped = model(), kind().build(STEPS)
    for step in range(stop):
        wander(walker, step)
        stopped.update(walker, step)
    rest, resumed = copy.deepcopy(walker), kind().build(STEPS)
    resumed.restore(rest, stopped.tensors, stopped.count)
    with torch.no_grad():
        for tensor in stopped.tensors.values():
            tensor.fill_(float("nan"))  # what was restored is a copy
    for step in range(stop, STEPS):
        wander(rest, step)
        resumed.update(rest, step)
    assert resumed.count == whole.count
    assert list(resumed.tensors) == list(whole.tensors)
    for name, tensor in whole.tensors.items():
        assert resumed.tensors[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_averages_of_another_model_are_refused() -> None:
    average, walker, _ = walk(Ema())
    tensors = dict(average.tensors)
    fresh = Ema().build(STEPS)
    with raises("weights.mismatch", "averages", "0.bias"):
        fresh.restore(walker, tensors | {"0.bias": torch.zeros(5)}, 1)
    del tensors["2.weight"]
    with raises("weights.mismatch", "2.weight"):
        fresh.restore(walker, tensors, 1)
    with raises("weights.mismatch", "0.bias"):
        fresh.restore(walker, tensors, 0)
    assert (fresh.tensors, fresh.count) == ({}, 0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("put_away", [True, False])
@pytest.mark.sampled(2)
def test_a_sharded_model_goes_on_with_its_own_weights_or_says_why_not(put_away: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    vit, images = small().build(), torch.rand(2, 3, 32, 48)
    plain = copy.deepcopy(vit)
    fully_shard(vit, reshard_after_forward=put_away)
    average = Ema().build(STEPS)
    average.update(vit, 0)
    with torch.no_grad():
        for part in (vit, plain):
            part.get_parameter("head.linear.bias").add_(1)
    if put_away:
        with torch.no_grad(), average.applied_to(vit):
            assert vit(images).eq(0).all()  # the head begins as zeros
        torch.testing.assert_close(vit(images), plain(images))
    else:
        with pytest.raises(AssertionError, match="not resharded"), torch.no_grad(), average.applied_to(vit):
            vit(images)
