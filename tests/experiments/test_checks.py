"""Checks: the differences that results can tell, and the verdict on a claim."""

import math

import pytest
from scipy import stats

from vitral.experiments.checks import Check, Sample, better, decide, equals, is_at_chance, overall, same, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 4, 16, 60])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_quantile_is_that_of_the_t_distribution(level: float, degrees: int) -> None:
    assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf(1 - level / 2, degrees), rel=1e-4)


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
