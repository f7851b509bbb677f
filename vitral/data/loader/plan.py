"""The plan of all batches: which images each step shows, to this process of several."""

from dataclasses import dataclass, field
from functools import cached_property

from pydantic import Field

from vitral.config import Config
from vitral.data.loader.order import Indices, InOrder, Order
from vitral.errors import ConfigError


class World(Config):
    """The processes that show the same batches together, and which of them this is."""

    rank: int = Field(default=0, ge=0)
    size: int = Field(default=1, ge=1)


ALONE = World()


class Position(Config):
    """Where a stream of batches stands: all that must be known to go on, with any number of workers or processes."""

    step: int = Field(ge=0)
    seed: int
    batch: int
    images: int
    order: Order


@dataclass(frozen=True)
class Plan:
    """Steps are numbered from 0 through all epochs; a batch is that of all processes together."""

    labels: Indices
    order: Order
    batch: int
    seed: int
    world: World = ALONE
    _orders: dict[int, Indices] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.labels):
            what, remedy = "there are no images to show", "choose a split that has some"
            raise ConfigError(what, code="config.empty_split", where="split", remedy=remedy)
        if self.batch < 1:
            what = f"expected a batch of at least 1, got {self.batch}"
            raise ConfigError(what, code="config.out_of_range", where="batch")
        if self.world.rank >= self.world.size:
            what = f"there is no process {self.world.rank} among {self.world.size}, counted from 0"
            raise ConfigError(what, code="config.out_of_range", where="world")
        if not isinstance(self.order, InOrder) and self.batch % self.world.size:
            what = f"a batch of {self.batch} does not divide among {self.world.size} processes"
            raise ConfigError(
                what, code="config.indivisible", where="batch", remedy=f"use a multiple of {self.world.size}"
            )
        if self.epoch_steps == 0:
            what = f"a batch of {self.batch} is larger than the set, which has {len(self.labels)} images"
            raise ConfigError(what, code="config.out_of_range", where="batch", remedy=f"use at most {len(self.labels)}")

    @cached_property
    def epoch_steps(self) -> int:
        """How many steps make an epoch."""
        return self.order.batches(len(self.labels), self.batch)

    def epoch(self, step: int) -> int:
        """The epoch that a step belongs to."""
        return step // self.epoch_steps

    def places(self, step: int) -> Indices:
        """The places in the set of the images that this process shows at a step: every n-th of n processes."""
        return self._together(step)[self.world.rank :: self.world.size]

    def images(self, step: int) -> int:
        """How many images all processes show together at a step."""
        return len(self._together(step))

    @property
    def rows(self) -> int:
        """The most images that this process shows at a step."""
        return -(-self.batch // self.world.size)

    def position(self, step: int) -> Position:
        """The state of a stream that shows this step next."""
        return Position(step=step, seed=self.seed, batch=self.batch, images=len(self.labels), order=self.order)

    def step(self, position: Position) -> int:
        """The step to go on with, if the position belongs to this plan."""
        for name, here in self.position(position.step):
            there = getattr(position, name)
            if here != there:
                what = f"the stream was left with {name} {_word(there)}, and this one has {_word(here)}"
                remedy = "go on with the same data and settings, or start anew"
                raise ConfigError(what, code="config.resume_mismatch", where=name, remedy=remedy)
        return position.step

    def _together(self, step: int) -> Indices:
        order = self._order(self.epoch(step))
        start = step % self.epoch_steps * self.batch
        return order[start : start + self.batch]

    def _order(self, epoch: int) -> Indices:
        if epoch not in self._orders:
            self._orders.clear()  # steps are taken in turn, so only the latest is needed
            self._orders[epoch] = self.order.epoch(self.labels, self.seed, epoch)
        return self._orders[epoch]


def _word(value: object) -> str:
    return value.kind if isinstance(value, Config) and hasattr(value, "kind") else str(value)
