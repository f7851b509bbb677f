"""Portions: all of a batch, scaled, with a generator each."""

import numpy as np
import pytest
import torch

from vitral.data.loading.loader import Batch
from vitral.data.loading.sampler import SamplingPlan, Sequential, Shuffled, World
from vitral.data.transforms.preprocessing import CENTERED
from vitral.training.loop import MicrobatchConfig, split_batch

LABELS = np.zeros(20, dtype=np.int64)
BYTES = torch.arange(7 * 3 * 4 * 4, dtype=torch.int64).remainder(256).to(torch.uint8).view(7, 3, 4, 4)
BATCH = Batch(BYTES, torch.arange(7), torch.arange(7))
PLAN = SamplingPlan(LABELS[:15], Sequential(), 8, seed=1)  # every other batch has 7 images


def test_portions_together_are_the_batch() -> None:
    for count in (1, 3, 7):
        found = split_batch(BATCH, 5, PLAN, MicrobatchConfig(CENTERED, count, torch.device("cpu")))
        assert len(found) == count
        assert torch.equal(torch.cat([portion.images for portion in found]), CENTERED.apply(BYTES))
        assert torch.cat([portion.labels for portion in found]).tolist() == list(range(7))
        assert sum(portion.weight for portion in found) == pytest.approx(1)


def test_dice_depend_on_step_portion_and_rank_alone() -> None:
    serving = MicrobatchConfig(CENTERED, 2, torch.device("cpu"))
    pair = [SamplingPlan(LABELS, Shuffled(), 8, 1, World(rank=rank, size=2)) for rank in range(2)]
    seeds = {
        (step, rank, number): portion.seed
        for step in (0, 1)
        for rank, plan in enumerate(pair)
        for number, portion in enumerate(split_batch(BATCH, step, plan, serving))
    }
    assert len(set(seeds.values())) == 8
    again = split_batch(BATCH, 1, pair[1], serving)
    assert again[1].seed == seeds[1, 1, 1]
    assert again[1].rng.random() == split_batch(BATCH, 1, pair[1], serving)[1].rng.random()


def test_shares_are_those_of_the_batch_of_all_processes() -> None:
    serving = MicrobatchConfig(CENTERED, 3, torch.device("cpu"))
    pair = [SamplingPlan(LABELS[:15], Sequential(), 8, 1, World(rank=rank, size=2)) for rank in range(2)]
    whole = [portion for plan in pair for portion in split_batch(part_of(BATCH, plan), 1, plan, serving)]
    assert [len(portion.labels) for portion in whole] == [2, 1, 1, 1, 1, 1]
    assert [portion.weight for portion in whole] == pytest.approx([2 / 7, *[1 / 7] * 5])


def test_a_process_without_images_has_portions_that_count_nothing() -> None:
    plan = SamplingPlan(LABELS[:9], Sequential(), 8, 1, World(rank=1, size=2))
    nothing = Batch(BYTES[:0], torch.arange(0), torch.arange(0))
    found = split_batch(nothing, 1, plan, MicrobatchConfig(CENTERED, 2, torch.device("cpu")))
    assert [(len(portion.labels), portion.weight) for portion in found] == [(0, 0.0), (0, 0.0)]


def part_of(batch: Batch, plan: SamplingPlan) -> Batch:
    places = slice(plan.world.rank, None, plan.world.size)
    return Batch(batch.images[places], batch.labels[places], batch.indices[places])
