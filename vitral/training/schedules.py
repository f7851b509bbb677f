"""How the rate of learning goes over a run: up linearly, then down in one of four ways.

A schedule gives the rate as a share of the optimizer's peak rate. It is a pure function of the step, so a run that
resumes needs nothing of it. The numbers are big_vision's: step 0 of a warm-up has the rate 0, step `warmup` has all of
it, and a decay would arrive at its end one step after the last.
"""

from math import cos, pi
from typing import Annotated, Literal

from pydantic import Field

from vitral.core.config import Config
from vitral.core.errors import ConfigError


class ScheduleKind(Config):
    """The warm-up that all share; the hooks of a kind that stays at its peak."""

    warmup: float = Field(default=0, ge=0)  # steps; below 1 a share of the run

    def warm(self, steps: int) -> int:
        """The steps of the warm-up of a run of so many."""
        return round(self.warmup * steps if self.warmup < 1 else self.warmup)

    def check(self, steps: int) -> None:
        """Refuse a run too short for this schedule."""
        if self.warm(steps) >= steps > 1:
            raise ConfigError(
                f"the warm-up takes {self.warm(steps)} steps, the whole run only {steps}",
                code="config.conflict",
                where="warmup",
                hint="shorten the warm-up or train for longer",
            )

    def rate(self, step: int, steps: int) -> float:
        """The share of the peak rate at a step, counted from 0, of a run of so many steps."""
        warm = self.warm(steps)
        risen = min(1.0, step / warm) if warm else 1.0
        return risen * self.fallen(max(0, step - warm), steps - warm)

    def fallen(self, step: int, steps: int) -> float:
        """What is left of the peak, both counted from the end of the warm-up."""
        return 1.0


class Constant(ScheduleKind):
    """The peak rate to the end."""

    kind: Literal["constant"] = "constant"


class Falling(ScheduleKind):
    """From the peak to a share of it at the end."""

    end: float = Field(default=0.0, ge=0, le=1)


class Linear(Falling):
    """Down in a straight line: the paper's for large pre-training, which ends at 1e-5 (a share of 0.0125 of 8e-4)."""

    kind: Literal["linear"] = "linear"

    def fallen(self, step: int, steps: int) -> float:
        return self.end + (1 - self.end) * (1 - progress(step, steps))


class Cosine(Falling):
    """Down in half a wave: the paper's for ImageNet and for fine-tuning."""

    kind: Literal["cosine"] = "cosine"

    def fallen(self, step: int, steps: int) -> float:
        return self.end + (1 - self.end) * (1 + cos(pi * progress(step, steps))) / 2


class InverseSquareRoot(ScheduleKind):
    """Down with the root of time, to 0.7 after `timescale` steps, then straight to nothing over the cooldown.

    The way down does not know where the run ends, so a run can go on from before its cooldown (arXiv 2106.04560).
    """

    kind: Literal["inverse_square_root"] = "inverse_square_root"
    timescale: int = Field(default=10_000, ge=1)  # steps
    cooldown: int = Field(default=0, ge=0)  # steps

    def check(self, steps: int) -> None:
        super().check(steps)
        if (taken := self.warm(steps) + self.cooldown) > steps > 1:
            raise ConfigError(
                f"warm-up and cooldown take {taken} steps, the whole run only {steps}",
                code="config.conflict",
                where="cooldown",
                hint="shorten the cooldown or train for longer",
            )

    def fallen(self, step: int, steps: int) -> float:
        cooled = min(1.0, max(0, steps - step) / self.cooldown) if self.cooldown else 1.0
        return cooled * (1 + step / self.timescale) ** -0.5


def progress(step: int, steps: int) -> float:
    """How much of the way is behind, from 0 to 1."""
    return min(1.0, step / max(1, steps))


ScheduleConfig = Annotated[Constant | Linear | Cosine | InverseSquareRoot, Field(discriminator="kind")]
