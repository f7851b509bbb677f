"""Checks: the differences that results can tell, and the verdict on a claim."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from vitral.experiments.checks import (
    Check,
    Decision,
    Sample,
    better,
    equals,
    is_at_chance,
    overall,
    same,
    t_quantile,
)
from vitral.experiments.checks import decide as decide_by_metric


@pytest.mark.parametrize("degrees", [1, 2, 4, 16, 60])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_quantile_is_that_of_the_t_distribution(level: float, degrees: int) -> None:
    assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf(1 - level / 2, degrees), rel=1e-4)


def decide(checks: Sequence[Check], samples: dict[str, Sample], exact: bool) -> list[Decision]:
    return decide_by_metric(checks, lambda metric: samples, exact)


def three(*values: float, images: int = 0) -> Sample:
    return Sample(values, images)


def test_a_difference_beyond_the_spread_is_held_or_not_held() -> None:
    samples = {"a": three(0.80, 0.81, 0.82), "b": three(0.60, 0.61, 0.62)}
    held, not_held = decide([better("a", "b"), better("b", "a")], samples, exact=False)
    assert (held.verdict, not_held.verdict) == ("held", "not held")
    assert held.difference == pytest.approx(0.2)
    spread = 0.01  # of each arm, with 2 degrees of freedom
    assert held.smallest == pytest.approx(stats.t.ppf(1 - 0.05 / 2 / 2, 4) * spread * math.sqrt(2 / 3), rel=1e-4)


def test_the_sampling_of_the_test_images_counts() -> None:
    samples = {"a": three(0.52, 0.52, 0.52, images=100), "b": three(0.48, 0.48, 0.48, images=100)}
    (found,) = decide([better("a", "b")], samples, exact=False)
    assert found.verdict == "undecided"
    sampling = (0.52 * 0.48 + 0.48 * 0.52) / 100
    assert found.smallest == pytest.approx(stats.t.ppf(0.975, 4) * math.sqrt(sampling), rel=1e-4)


def test_what_arms_have_in_common_on_the_same_images_drops_out() -> None:
    right = np.array([True] * 52 + [False] * 48)
    other = right.copy()
    other[:2] = False  # two images fewer, and no others
    samples = {"a": Sample((0.52,) * 3, 100, right.astype(float)), "b": Sample((0.50,) * 3, 100, other.astype(float))}
    (found,) = decide([better("a", "b")], samples, exact=False)
    paired = np.var(right.astype(float) - other) / 100
    assert found.smallest == pytest.approx(stats.t.ppf(0.975, 4) * math.sqrt(paired), rel=1e-4)
    alone = {name: each._replace(correct=np.zeros(0)) for name, each in samples.items()}
    (independent,) = decide([better("a", "b")], alone, exact=False)
    assert found.smallest < independent.smallest / 3  # type: ignore[operator]


def test_a_difference_within_the_spread_is_undecided() -> None:
    samples = {"a": three(0.70, 0.80, 0.90), "b": three(0.69, 0.79, 0.89)}
    assert [each.verdict for each in decide([better("a", "b")], samples, exact=False)] == ["undecided"]


def test_fewer_than_three_seeds_decide_nothing() -> None:
    samples = {"a": three(0.90, 0.91), "b": three(0.10, 0.11)}
    assert [each.verdict for each in decide([better("a", "b")], samples, exact=False)] == ["undecided"]
    single = decide([better("a", "b")], {"a": three(0.9), "b": three(0.1)}, exact=False)
    assert (single[0].verdict, single[0].smallest) == ("undecided", None)


def test_equal_is_held_only_if_the_results_could_have_told_a_difference() -> None:
    close = {"a": three(0.800, 0.801, 0.802), "b": three(0.801, 0.802, 0.803)}
    wide = {"a": three(0.70, 0.80, 0.90), "b": three(0.69, 0.79, 0.89)}
    far = {"a": three(0.800, 0.801, 0.802), "b": three(0.900, 0.901, 0.902)}
    found = [decide([same("a", "b", within=0.02)], samples, exact=False)[0].verdict for samples in (close, wide, far)]
    assert found == ["held", "undecided", "not held"]


def test_numbers_without_spread_are_compared_exactly() -> None:
    checks = [equals("a", 86_567_656), equals("a", 86_567_655), equals("a", 86e6, within=1e6)]
    found = decide(checks, {"a": three(86_567_656.0)}, exact=True)
    assert [each.verdict for each in found] == ["held", "not held", "held"]


def test_an_arm_without_values_decides_nothing() -> None:
    (found,) = decide([Check("", {"a": 1.0, "b": -1.0})], {"a": three(0.5, 0.6, 0.7)}, exact=False)
    assert found == (None, None, "undecided")


def test_the_verdict_is_that_of_the_weakest_check_and_an_arm_at_chance_makes_it_invalid() -> None:
    assert overall(["held", "held"], at_chance=False) == "held"
    assert overall(["held", "undecided"], at_chance=False) == "undecided"
    assert overall(["undecided", "not held"], at_chance=False) == "not held"
    assert overall(["held"], at_chance=True) == "invalid"
    assert is_at_chance(three(0.11, 0.12, images=1000), chance=0.1)
    assert not is_at_chance(three(0.13, 0.14, images=1000), chance=0.1)
    assert not is_at_chance(three(0.13, 0.14), chance=0.0)


def test_a_check_reads_the_values_of_its_own_metric() -> None:
    values = {"": {"a": three(0.1, 0.2, 0.3), "b": three(0.1, 0.2, 0.3)}}
    values["slope"] = {"a": three(2.0, 2.1, 2.2), "b": three(1.0, 1.1, 1.2)}
    found = decide_by_metric([better("a", "b"), better("a", "b", metric="slope")], values.__getitem__, exact=False)
    assert [each.verdict for each in found] == ["undecided", "held"]
