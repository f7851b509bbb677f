"""What changes over a run inside a task: the momentum of a teacher, the temperature of a softmax.

Each is a function of the fraction of the run that is done, so it has no state. A task sets it in `begin_step`.
"""

from math import cos, pi
from typing import Annotated, Literal

from pydantic import Field

from vitral.core.config import Config, OpenUnion

Momentum = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(gt=0)]


def cosine(start: float, end: float, done: float) -> float:
    """Half a cosine from `start` to `end`."""
    return end + (start - end) * (1 + cos(pi * done)) / 2


def linear(start: float, end: float, done: float) -> float:
    """A straight line from `start` to `end`."""
    return start + (end - start) * min(1.0, done)


class ConstantMomentum(Config):
    """The same momentum in every step."""

    kind: Literal["constant"] = "constant"
    start: Momentum = 0.99

    def value(self, done: float) -> float:
        """The part of the teacher's weights that a step leaves as they are, after a fraction of the run."""
        return self.start


class CosineMomentum(Config):
    """A momentum that rises along half a cosine: in DINO, iBOT and MoCo v3."""

    kind: Literal["cosine"] = "cosine"
    start: Momentum = 0.996
    end: Momentum = 1.0

    def value(self, done: float) -> float:
        """The part of the teacher's weights that a step leaves as they are, after a fraction of the run."""
        return cosine(self.start, self.end, done)


class LinearMomentum(Config):
    """A momentum that rises linearly: in I-JEPA, and up to a part of the run in data2vec."""

    kind: Literal["linear"] = "linear"
    start: Momentum = 0.996
    end: Momentum = 1.0
    until: float = Field(default=1.0, gt=0, le=1)  # fraction of the run at which `end` is reached

    def value(self, done: float) -> float:
        """The part of the teacher's weights that a step leaves as they are, after a fraction of the run."""
        return linear(self.start, self.end, done / self.until)


MomentumConfig = Annotated[ConstantMomentum | CosineMomentum | LinearMomentum, OpenUnion()]


class ConstantTemperature(Config):
    """The same temperature in every step."""

    kind: Literal["constant"] = "constant"
    start: Temperature = 0.04

    def value(self, done: float) -> float:
        """The temperature after a fraction of the run."""
        return self.start


class WarmupTemperature(Config):
    """A temperature that rises linearly and then stays: low at first, so that the outputs do not become uniform."""

    kind: Literal["warmup"] = "warmup"
    start: Temperature = 0.04
    end: Temperature = 0.07
    until: float = Field(default=0.3, gt=0, le=1)  # fraction of the run at which `end` is reached

    def value(self, done: float) -> float:
        """The temperature after a fraction of the run."""
        return linear(self.start, self.end, done / self.until)


TemperatureConfig = Annotated[ConstantTemperature | WarmupTemperature, OpenUnion()]
