"""Learning rate schedules: linear warmup, then constant, linear, cosine or inverse square root decay.

A schedule gives the learning rate as a factor of the optimizer's peak. It is a pure function of the step, so it has no
state to save. As in big_vision, the factor is 0 at step 0 of a warmup and 1 at step `warmup`, and a decay would reach
its end one step after the last.
"""

from math import cos, pi
from typing import Annotated, Literal

from pydantic import Field

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError


class BaseSchedule(Config):
    """Linear warmup to a constant learning rate."""

    warmup: float = Field(default=0, ge=0)  # steps; below 1 a fraction of the run

    def warmup_steps(self, steps: int) -> int:
        """The number of warmup steps of a run."""
        return round(self.warmup * steps if self.warmup < 1 else self.warmup)

    def check(self, steps: int) -> None:
        """Raise an error if the run is too short for this schedule."""
        warmup = self.warmup_steps(steps)
        if warmup >= steps > 1:
            raise too_long("warmup", f"the warmup takes {warmup} steps, the whole run only {steps}")

    def lr_factor(self, step: float, steps: int) -> float:
        """The factor of the peak learning rate at a step, counted from 0; a time limit asks for parts of steps, too."""
        warmup = self.warmup_steps(steps)
        factor = min(1.0, step / warmup) if warmup else 1.0
        return factor * self.decay_factor(max(0, step - warmup), steps - warmup)

    def decay_factor(self, step: float, steps: int) -> float:
        """The decay; `step` and `steps` count from the end of the warmup."""
        return 1.0


class Constant(BaseSchedule):
    """Constant learning rate."""

    kind: Literal["constant"] = "constant"


class DecayingSchedule(BaseSchedule):
    """Decay from the peak to the factor `end`."""

    end: float = Field(default=0.0, ge=0, le=1)


class Linear(DecayingSchedule):
    """Linear decay: the paper's for large pre-training, which ends at 1e-5 (a factor of 0.0125 of 8e-4)."""

    kind: Literal["linear"] = "linear"

    def decay_factor(self, step: float, steps: int) -> float:
        return self.end + (1 - self.end) * (1 - fraction_done(step, steps))


class Cosine(DecayingSchedule):
    """Cosine decay: the paper's for ImageNet and for fine-tuning."""

    kind: Literal["cosine"] = "cosine"

    def decay_factor(self, step: float, steps: int) -> float:
        return self.end + (1 - self.end) * (1 + cos(pi * fraction_done(step, steps))) / 2


class InverseSquareRoot(BaseSchedule):
    """Inverse square root decay, to 0.7 after `timescale` steps, then linear to 0 over the cooldown.

    The decay does not depend on the length of the run, so a run can be extended from before its cooldown
    (arXiv 2106.04560).
    """

    kind: Literal["inverse_square_root"] = "inverse_square_root"
    timescale: int = Field(default=10_000, ge=1)  # steps
    cooldown: int = Field(default=0, ge=0)  # steps

    def check(self, steps: int) -> None:
        super().check(steps)
        if (taken := self.warmup_steps(steps) + self.cooldown) > steps > 1:
            raise too_long("cooldown", f"warmup and cooldown take {taken} steps, the whole run only {steps}")

    def decay_factor(self, step: float, steps: int) -> float:
        cooled = min(1.0, max(0, steps - step) / self.cooldown) if self.cooldown else 1.0
        return cooled * (1 + step / self.timescale) ** -0.5


def too_long(field: str, message: str) -> ConfigError:
    return ConfigError(message, code="config.conflict", where=field, hint=f"use a shorter {field} or train longer")


def fraction_done(step: float, steps: int) -> float:
    """The fraction of the steps that is done, from 0 to 1."""
    return min(1.0, step / max(1, steps))


ScheduleConfig = Annotated[Constant | Linear | Cosine | InverseSquareRoot, OpenUnion()]
