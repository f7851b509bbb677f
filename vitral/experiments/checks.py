"""Checks: what a claim says about the means of the arms, and whether the results are able to say so.

A difference counts if it is larger than both the spread over the seeds and the sampling of the test images explain at
95%, over all checks of the experiment together (Bonferroni). The largest that chance explains is stated beside it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["held", "not held", "undecided", "invalid"]
LEVEL = 0.05  # of a wrong verdict on any check
MIN_SEEDS = 3
ANGLES = 200_001  # at which the t distribution is integrated


@dataclass(frozen=True)
class Check:
    """A sum of means with these weights is above 0, or at most `within` from 0."""

    text: str
    weights: Mapping[str, float]  # by arm
    within: float | None = None  # None: it is above 0
    target: float = 0.0  # subtracted from the sum
    metric: str = ""  # by default the one that the experiment compares


def better(one: str, other: str, text: str = "", metric: str = "") -> Check:
    """The mean of an arm is above that of another."""
    return Check(text or f"{one} is better than {other}", {one: 1.0, other: -1.0}, metric=metric)


def same(one: str, other: str, within: float, text: str = "") -> Check:
    """The means of two arms, which are shares, differ by at most so much."""
    return Check(text or f"{one} and {other} are equal within {100 * within:g} points", {one: 1.0, other: -1.0}, within)


def equals(arm: str, value: float, within: float = 0.0) -> Check:
    """The mean of an arm is this value."""
    return Check(f"{arm} is {value:,.10g}", {arm: 1.0}, within, value)


class Sample(NamedTuple):
    """The values of an arm: one for each seed, and how many test images they are shares of, 0 for another metric."""

    values: tuple[float, ...]
    images: int = 0
    correct: NDArray[np.float64] = np.zeros(0)  # (images,): the share of the seeds that classify each correctly


class Decision(NamedTuple):
    """What a check found."""

    difference: float | None  # None if an arm has no values
    smallest: float | None  # the difference that chance explains; None if the seeds do not tell
    verdict: Verdict


def t_quantile(level: float, degrees: int) -> float:
    """The value that a t-distributed number exceeds in magnitude with this probability."""
    angles = np.linspace(0, math.pi / 2, ANGLES)
    density = np.cos(angles) ** (degrees - 1)  # of the angle whose tangent is t / sqrt(degrees)
    inside = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(degrees) * math.tan(float(np.interp(1 - level, inside / inside[-1], angles)))


def decide(checks: Sequence[Check], samples_of: Callable[[str], Mapping[str, Sample]], exact: bool) -> list[Decision]:
    """The verdict on each check, by the values of its metric; `exact` values have no spread."""
    found = []
    for check in checks:
        samples = samples_of(check.metric)
        spread, degrees = (0.0, 0) if exact else pooled_spread(samples)
        quantile = 0.0 if exact else t_quantile(LEVEL / len(checks), degrees) if degrees else math.inf
        found.append(_decide(check, samples, spread, quantile))
    return found


def pooled_spread(samples: Mapping[str, Sample]) -> tuple[float, int]:
    """The standard deviation over seeds that all arms share, and its degrees of freedom."""
    rows = [np.array(each.values) - each.values[0] for each in samples.values() if each.values]  # 0 for equal values
    squares = [(value - row.mean()) ** 2 for row in rows for value in row]
    degrees = sum(max(0, len(each.values) - 1) for each in samples.values())
    return (math.sqrt(sum(squares) / degrees) if degrees else 0.0), degrees


def _decide(check: Check, samples: Mapping[str, Sample], spread: float, quantile: float) -> Decision:
    found = {name: samples.get(name, Sample(())) for name in check.weights}
    if not all(each.values for each in found.values()):
        return Decision(None, None, "undecided")
    means = {name: float(np.mean(each.values)) for name, each in found.items()}
    difference = sum(weight * means[name] for name, weight in check.weights.items()) - check.target
    over_seeds = sum(weight**2 * spread**2 / len(found[name].values) for name, weight in check.weights.items())
    variance = over_seeds + sampling_variance(check.weights, found)
    smallest = 0.0 if quantile == 0 else quantile * math.sqrt(variance)
    if not math.isfinite(smallest):
        return Decision(difference, None, "undecided")
    low, high = difference - smallest, difference + smallest
    if quantile and min(len(each.values) for each in found.values()) < MIN_SEEDS:
        return Decision(difference, smallest, "undecided")
    if check.within is None:
        verdict: Verdict = "held" if low > 0 else "not held" if high < 0 else "undecided"
    else:
        inside, outside = max(abs(low), abs(high)) <= check.within, low > check.within or high < -check.within
        verdict = "held" if inside else "not held" if outside else "undecided"
    return Decision(difference, smallest, verdict)


def sampling_variance(weights: Mapping[str, float], samples: Mapping[str, Sample]) -> float:
    """The variance of a sum of means due to the choice of the test images.

    All arms are tested on the same images. Where it is known which of them are classified correctly, what the arms have
    in common drops out; else the arms are taken as independent, which is too cautious.
    """
    if all(samples[name].correct.size for name in weights):
        each = sum(weight * samples[name].correct for name, weight in weights.items())  # (images,)
        return float(np.var(each)) / np.size(each)
    total = 0.0
    for name, weight in weights.items():
        mean, images = float(np.mean(samples[name].values)), samples[name].images
        total += weight**2 * mean * (1 - mean) / images if images else 0.0
    return total


def overall(verdicts: Sequence[Verdict], at_chance: bool) -> Verdict:
    """The verdict on the claim: that of its weakest check; an arm at chance says nothing."""
    if at_chance:
        return "invalid"
    return next((each for each in ("not held", "undecided") if each in verdicts), "held") if verdicts else "undecided"


def is_at_chance(sample: Sample, chance: float) -> bool:
    """Whether the mean is no better than guessing, at two standard deviations."""
    if not chance or not sample.images or not sample.values:
        return False
    return float(np.mean(sample.values)) <= chance + 2 * math.sqrt(chance * (1 - chance) / sample.images)
