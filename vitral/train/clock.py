"""Training within a time: how long a limit is, how long a step takes, how many steps that leaves."""

import re
import time
from collections.abc import Callable
from math import ceil, floor
from statistics import median

import torch

from vitral.errors import ConfigError

WHERE = "time-limit"
IN_HAND = 0.05  # of the limit, for what nobody foresees and for the end of the run
NUMBER = r"(\d+(?:\.\d+)?)"
FORM = re.compile(rf"(?:{NUMBER}h)?(?:{NUMBER}m)?(?:{NUMBER}s)?|{NUMBER}", re.ASCII)


def seconds_of(text: str) -> float:
    """The seconds that a time such as `90s`, `10m`, `1h30m` or `45` stands for."""
    match = FORM.fullmatch(text)
    hours, minutes, seconds, bare = (float(part or 0) for part in match.groups()) if match else (0.0,) * 4
    found = 3600 * hours + 60 * minutes + seconds + bare
    if not found:
        raise ConfigError(
            f"expected a time, got {text!r}",
            code="config.wrong_type",
            where=WHERE,
            remedy="write it as 90s, 10m, 1h30m, 2h, or 45 for seconds",
        )
    return found


def steps_within(limit: float, spent: float, step_seconds: float, evaluation_seconds: float, epoch_steps: int) -> int:
    """How many steps fit into a limit of which some is spent, with an evaluation after each epoch and after the last.

    A part of the limit is kept in hand.
    """
    usable = (1 - IN_HAND) * limit - spent
    first = step_seconds + evaluation_seconds
    if usable < first:
        raise ConfigError(
            f"{limit:g} s are too few: {spent:.0f} s went into the start, and a step with an evaluation takes "
            f"{first:.2g} s",
            code="config.time_limit_too_short",
            where=WHERE,
            remedy=f"allow at least {ceil((spent + first) / (1 - IN_HAND))}s, or use a smaller model or smaller images",
        )
    epoch = epoch_steps * step_seconds + evaluation_seconds
    epochs = floor(usable / epoch)
    rest = usable - epochs * epoch - evaluation_seconds  # for steps of an epoch that is not finished
    more = min(epoch_steps - 1, max(0, floor(rest / step_seconds)))
    return max(1, epochs * epoch_steps + more)  # one fits, whatever rounding says


def seconds_for(work: Callable[[], object], device: torch.device, enough: Callable[[float], bool]) -> float:
    """How long it takes to do the work: the median of some times after two that only warm up.

    It is done five times more, or fewer once so many seconds are enough, but at least once.
    """
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < 3 or (len(found) < 7 and not enough(time.perf_counter() - began)):
        start = time.perf_counter()
        work()
        if device.type == "cuda":  # whose work goes on after it was asked for
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return median(found[2:])
