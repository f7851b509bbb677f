"""What a sweep tries: values for settings, the combinations of them, and how long each is trained."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, log
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from vitral.core.config import Config, OpenUnion, parse_settings
from vitral.core.errors import ConfigError
from vitral.core.rng import Purpose, rng_for
from vitral.recipes.recipe import Epochs, ImagesSeen, Recipe, Steps
from vitral.training.schedules import InverseSquareRoot

RANGE = ".."  # between the ends of a range: lr=1e-4..1e-2
Point = dict[str, Any]  # a value for each setting


class Choices(Config):
    """A setting takes each of these values."""

    kind: Literal["choices"] = "choices"
    values: tuple[JsonValue, ...] = Field(min_length=1)

    def draw(self, share: float) -> Any:
        """The value at a share, from 0 to 1, of the list."""
        return self.values[int(share * len(self.values))]


class Range(Config):
    """A setting takes any number between two, drawn uniformly in its logarithm, or as it is if `low` is not above 0."""

    kind: Literal["range"] = "range"
    low: float
    high: float

    @model_validator(mode="after")
    def ends_rise(self) -> Self:
        if self.low >= self.high:
            message, hint = f"{self.low:g} is not below {self.high:g}", "give the lower end first, such as 1e-4..1e-2"
            raise ConfigError(message, code="config.conflict", hint=hint)
        return self

    def draw(self, share: float) -> float:
        """The number at a share, from 0 to 1, of the range, with four digits."""
        low, high = self.low, self.high
        found = exp(log(low) + share * (log(high) - log(low))) if low > 0 else low + share * (high - low)
        return float(f"{found:.4g}")


Values = Annotated[Choices | Range, OpenUnion()]


class BaseSearch(Config):
    """How many trials each combination gets, and for how long."""

    seeds: int = Field(default=1, ge=1)  # trials of each combination, whose seeds count up from that of the recipe
    halving: int = Field(default=0, ge=0)  # one in so many combinations is kept and trained longer; 0 trains all fully

    @model_validator(mode="after")
    def halving_drops_some(self) -> Self:
        if self.halving == 1:
            hint = "2 or 3 are usual; 0 trains every combination fully"
            raise ConfigError("1 would drop nothing", code="config.out_of_range", where="halving", hint=hint)
        return self


class GridSearch(BaseSearch):
    """Every combination of the values."""

    kind: Literal["grid"] = "grid"

    def points(self, over: Mapping[str, Choices | Range]) -> list[Point]:
        """The combinations, the last setting changing fastest."""
        lists = []
        for path, values in over.items():
            if isinstance(values, Range):
                message = "a grid needs a list of values, not a range"
                hint = f"give values, such as {path}={values.low:g},{values.high:g}, or draw some: --random 20"
                raise ConfigError(message, code="config.conflict", where=path, hint=hint)
            lists.append(values.values)
        return [dict(zip(over, chosen, strict=True)) for chosen in product(*lists)]


class RandomSearch(BaseSearch):
    """Random combinations, all different, with independent values (Bergstra and Bengio, 2012)."""

    kind: Literal["random"] = "random"
    trials: int = Field(default=20, ge=1)
    seed: int = Field(default=0, ge=0)

    def points(self, over: Mapping[str, Choices | Range]) -> list[Point]:
        """The combinations; fewer than `trials` where the lists have no more."""
        found: list[Point] = []
        for attempt in range(100 * self.trials):
            shares = rng_for(self.seed, Purpose.SEARCH, attempt).random(len(over))
            point = {path: values.draw(share) for (path, values), share in zip(over.items(), shares, strict=True)}
            if point not in found:
                found.append(point)
            if len(found) == self.trials:
                break
        return found


Search = Annotated[GridSearch | RandomSearch, OpenUnion()]


def parse_over(texts: Sequence[str]) -> dict[str, Choices | Range]:
    """The values by setting of options such as `lr=1e-3,3e-3`, `optimizer=adamw,muon` or `lr=1e-4..1e-2`."""
    over: dict[str, Choices | Range] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not path or not equals or not values:
            message, hint = f"expected setting=values, got {text!r}", "such as --over lr=1e-3,3e-3"
            raise ConfigError(message, code="config.bad_setting", where="--over", hint=hint)
        if path in over:
            hint = f"give all its values at once: --over {path}=A,B"
            raise ConfigError(f"{path} is given twice", code="config.conflict", where="--over", hint=hint)
        over[path] = _parse_values(path, values)
    return over


def _parse_values(path: str, text: str) -> Choices | Range:
    low, dots, high = text.partition(RANGE)
    if dots:
        try:
            ends = float(low), float(high)
        except ValueError:
            message = f"expected a range such as 1e-4..1e-2, got {text!r}"
            raise ConfigError(message, code="config.wrong_type", where=path) from None
        return Range(low=ends[0], high=ends[1])
    return Choices(values=tuple(parse_settings([f"{path}={each}"])[path] for each in _split(text)))


def _split(text: str) -> list[str]:
    """The parts between commas that are outside brackets: `[0.9,0.95],[0.9,0.99]` has two."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def rung_shares(points: int, factor: int) -> list[float]:
    """The length of each rung of successive halving, as a share of the recipe's; `factor` 0 is one full rung.

    Every rung keeps one in `factor` of its points and trains them `factor` times as long (Jamieson and Talwalkar,
    2016), so every rung costs about the same.
    """
    rungs = 1
    while factor and points // factor**rungs >= 1:
        rungs += 1
    return [float(factor or 1) ** (rung + 1 - rungs) for rung in range(rungs)]


def shorten_recipe(recipe: Recipe, share: float) -> Recipe:
    """The recipe with a share of its steps; its schedule is scaled with it, so a short run also ends its decay."""
    if share == 1:
        return recipe
    length = recipe.length
    if isinstance(length, Epochs):
        length = Epochs(epochs=length.epochs * share)
    elif isinstance(length, Steps):
        length = Steps(steps=max(1, round(length.steps * share)))
    elif isinstance(length, ImagesSeen):
        least, most = length.min_epochs * share, length.max_epochs * share
        length = ImagesSeen(images=max(1, round(length.images * share)), min_epochs=least, max_epochs=most)
    else:
        message = f"a length of kind {length.kind} cannot be shortened"
        raise ConfigError(message, code="config.conflict", where="length", hint="give --epochs, or leave out --halving")
    schedule = recipe.schedule
    if schedule.warmup >= 1:
        schedule = schedule.model_copy(update={"warmup": max(1.0, schedule.warmup * share)})
    if isinstance(schedule, InverseSquareRoot):
        timescale, cooldown = max(1, round(schedule.timescale * share)), round(schedule.cooldown * share)
        schedule = schedule.model_copy(update={"timescale": timescale, "cooldown": cooldown})
    return recipe.model_copy(update={"length": length, "schedule": schedule})
