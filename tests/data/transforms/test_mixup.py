"""B images, C channels, H rows, W columns, K classes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from tests.data.transforms.oracles import FIXTURES
from tests.errors import raises
from vitral.core.config import Config, union_members
from vitral.data.transforms.crop import Box
from vitral.data.transforms.mixup import CutMix, Mixing, Mixup, MixupOrCutMix, cut_box, cutmix, mixup, one_hot

ANSWERS = load_file(FIXTURES / "augmentations.safetensors")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def batch(size: int = 5) -> tuple[Tensor, Tensor]:
    """Images in which each has a level of its own, (B, 3, 6, 8), and a class for each, (B, B)."""
    images = torch.arange(size, dtype=torch.float32)[:, None, None, None].expand(size, 3, 6, 8).clone()
    return images, torch.eye(size)


@pytest.fixture(params=union_members(Mixing), ids=lambda member: member.__name__)
def mixing(request: pytest.FixtureRequest) -> Mixing:
    member: type[Config] = request.param
    return member()  # type: ignore[return-value]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_any_mixing_keeps_shapes_sums_and_the_batch_it_was_given(mixing: Mixing, size: int) -> None:
    for seed in range(30):
        images, targets = batch(size)
        mixed = mixing.apply(images, targets, rng(seed))
        assert mixed.images.shape == images.shape
        assert mixed.images.dtype == images.dtype
        assert_close(mixed.targets.sum(dim=1), torch.ones(size))
        assert_close(mixed.images, mixing.apply(images, targets, rng(seed)).images, rtol=0, atol=0)
        assert_close((images, targets), batch(size), rtol=0, atol=0)


def test_targets_say_how_much_of_each_image_is_in_it(mixing: Mixing) -> None:
    for seed in range(30):
        images, targets = batch()
        mixed = mixing.apply(images, targets, rng(seed))
        levels = torch.arange(5, dtype=torch.float32)
        assert_close(mixed.images.mean(dim=(1, 2, 3)), mixed.targets @ levels, rtol=1e-5, atol=1e-5)
        partners = mixed.targets.roll(1, dims=1)  # of image i is image i - 1
        assert_close((mixed.targets + partners).diagonal(), torch.ones(5))


def test_a_config_comes_back_from_its_json(mixing: Mixing) -> None:
    assert type(mixing).from_json(mixing.to_json()) == mixing


@pytest.mark.parametrize("share", [0.0, 0.3, 0.85])
def test_mixup_equals_torchvisions_and_timms(share: float) -> None:
    mixed = mixup(ANSWERS["images"], ANSWERS["targets"], share)
    expected = (ANSWERS[f"torchvision/mixup/{share}/images"], ANSWERS[f"torchvision/mixup/{share}/targets"])
    assert_close(tuple(mixed), expected, rtol=0, atol=0)
    assert_close(mixed.targets, ANSWERS[f"timm/mixup/{share}/targets"], rtol=0, atol=0)


def test_cutmix_equals_torchvisions() -> None:
    mixed = cutmix(ANSWERS["images"], ANSWERS["targets"], Box(1, 2, 4, 6))
    name = "torchvision/cutmix/1,5,2,8"
    assert_close(tuple(mixed), (ANSWERS[f"{name}/images"], ANSWERS[f"{name}/targets"]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("row", range(40))
def test_boxes_and_corrected_shares_are_timms(row: int) -> None:
    share, *whole, kept = ANSWERS["timm/boxes"][row].tolist()
    center_row, center_column, top, bottom, left, right = map(int, whole)
    box = cut_box(23, 30, share, center_row, center_column)
    assert box == Box(top, left, bottom - top, right - left)
    _, targets = cutmix(torch.zeros(2, 1, 23, 30), torch.eye(2), box)
    assert_close(targets.diagonal(), torch.full((2,), kept))


@given(
    share=st.floats(0.0, 1.0),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    place=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
)
def test_a_box_is_inside_and_never_larger_than_asked(
    share: float, height: int, width: int, place: tuple[float, float]
) -> None:
    box = cut_box(height, width, share, int(place[0] * height), int(place[1] * width))
    assert 0 <= box.top <= box.top + box.height <= height
    assert 0 <= box.left <= box.left + box.width <= width
    assert box.height * box.width <= (1 - share) * height * width + 1e-9


def test_a_box_in_the_middle_leaves_the_share() -> None:
    assert cut_box(40, 80, 0.75, 20, 40) == Box(10, 20, 20, 40)
    assert cut_box(40, 80, 1.0, 20, 40)[2:] == (0, 0)
    assert cut_box(40, 80, 0.0, 20, 40) == Box(0, 0, 40, 80)


@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_shares_of_mixup_are_the_greater_parts_of_beta_draws(alpha: float) -> None:
    images, targets = torch.zeros(2, 1, 1, 1), torch.eye(2, dtype=torch.float64)
    shares = [float(Mixup(alpha=alpha).apply(images, targets, rng(seed)).targets[0, 0]) for seed in range(2000)]
    assert min(shares) >= 0.5
    law = stats.beta(alpha, alpha)
    assert stats.kstest(shares, lambda share: law.cdf(share) - law.cdf(1 - share)).pvalue > 0.01


def test_areas_of_cutmix_are_beta_draws_and_centers_are_anywhere() -> None:
    images, targets = batch()
    shares = []
    for seed in range(400):
        generator = rng(seed)
        shares.append(generator.beta(0.5, 0.5))
        box = cut_box(6, 8, shares[-1], int(generator.integers(6)), int(generator.integers(8)))
        found = CutMix(alpha=0.5).apply(images, targets, rng(seed))
        assert_close(tuple(found), tuple(cutmix(images, targets, box)), rtol=0, atol=0)
    assert stats.kstest(shares, stats.beta(0.5, 0.5).cdf).pvalue > 0.01


def test_one_or_the_other_is_drawn_for_each_batch() -> None:
    images, targets = batch()
    cut = 0
    for seed in range(200):
        mixed = MixupOrCutMix().apply(images, targets, rng(seed)).images
        cut += bool((mixed.frac() == 0).all())  # only mixup makes levels in between
    assert 70 < cut < 130


def test_labels_become_rows_with_a_one() -> None:
    expected = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert_close(one_hot(torch.tensor([2, 0]), 3), expected, rtol=0, atol=0)


def test_smoothing_is_timms() -> None:
    assert_close(one_hot(torch.arange(5), 5, smoothing=0.1), ANSWERS["timm/smooth"])


def test_whole_numbers_are_not_mixed() -> None:
    with pytest.raises(AssertionError, match="one_hot"):
        mixup(torch.zeros(2, 3, 4, 4), torch.eye(2, dtype=torch.int64), 0.5)


@pytest.mark.parametrize("member", [Mixup, CutMix])
def test_an_alpha_of_zero_is_refused(member: type[Mixup | CutMix]) -> None:
    with raises("config.out_of_range", "alpha"):
        member(alpha=0.0)
