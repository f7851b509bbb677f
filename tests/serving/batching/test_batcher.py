"""Images gather into batches."""

import asyncio
import threading

import numpy as np
import pytest

from vitral.core.errors import VitralError
from vitral.inference.engines.engine import FloatArray, PixelBatch
from vitral.serving.batching.admission import Cost
from vitral.serving.batching.batcher import Batcher, Lane
from vitral.serving.config import Batching


class Engine:
    """Gives the first pixel of each image, and remembers the sizes of batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, pixels: PixelBatch) -> FloatArray:
        self.gate.wait(60)
        self.sizes.append(len(pixels))
        return pixels[:, :1, 0, 0].astype(np.float32)


def image(level: int) -> PixelBatch:
    return np.full((2, 2, 3), level, np.uint8)


def batcher(engine: Engine, lane: Lane, cost: float = 1e-4, **fields: float) -> Batcher:
    return Batcher(lane, engine, Cost(cost), Batching(**fields), threads=2)  # type: ignore[arg-type]


def test_what_arrives_while_a_batch_runs_is_the_next_batch() -> None:
    engine = Engine()

    async def main() -> list[FloatArray]:
        own = batcher(engine, Lane(), size=8)
        engine.gate.clear()
        first = asyncio.ensure_future(own.submit(image(0), 60))
        await asyncio.sleep(0.05)  # it runs
        rest = [asyncio.ensure_future(own.submit(image(level), 60)) for level in range(1, 12)]
        await asyncio.sleep(0)
        engine.gate.set()
        return await asyncio.gather(first, *rest)

    assert [int(row[0]) for row in asyncio.run(main())] == list(range(12))
    assert engine.sizes == [1, 8, 3]


def test_a_batch_waits_for_images_that_are_being_decoded() -> None:
    async def main(decoding: int) -> list[int]:
        engine = Engine()
        own = batcher(engine, Lane(), wait_seconds=1.0)
        own.decoding = decoding
        first = asyncio.ensure_future(own.submit(image(1), 60))
        await asyncio.sleep(0.02)
        own.decoding = 0
        await asyncio.gather(first, own.submit(image(2), 60))
        return engine.sizes

    assert asyncio.run(main(decoding=1)) == [2]
    assert asyncio.run(main(decoding=0)) == [1, 1]


@pytest.mark.parametrize(("cost", "limit"), [(1e-4, 32), (0.075, 4), (0.1, 4), (0.2, 2), (9.0, 2)])
def test_a_slow_model_has_small_batches(cost: float, limit: int) -> None:
    async def main() -> int:
        return batcher(Engine(), Lane(), cost).limit

    assert asyncio.run(main()) == limit


def test_two_models_take_turns() -> None:
    order: list[str] = []

    def named(name: str) -> "Engine":
        engine = Engine()
        run = engine.__call__

        def noted(pixels: PixelBatch) -> FloatArray:
            order.append(name)
            return run(pixels)

        return noted  # type: ignore[return-value]

    async def main() -> None:
        lane = Lane()
        one, two = (batcher(named(name), lane, size=1) for name in ("one", "two"))
        jobs = [each.submit(image(0), 60) for each in (one, one, one, two, two, two)]
        await asyncio.gather(*jobs)

    asyncio.run(main())
    assert order == ["one", "two"] * 3


def test_an_image_without_a_number_for_an_answer_is_an_error_of_its_own() -> None:
    def half(pixels: PixelBatch) -> FloatArray:
        return np.where(pixels[:, :1, 0, 0] > 100, np.nan, pixels[:, :1, 0, 0]).astype(np.float32)

    async def main() -> tuple[object, object]:
        own = Batcher(Lane(), half, Cost(1e-4), Batching(), 2)
        return await asyncio.gather(own.submit(image(7), 60), own.submit(image(200), 60), return_exceptions=True)

    good, bad = asyncio.run(main())
    assert good == 7
    assert isinstance(bad, VitralError)
    assert bad.code == "weights.not_finite"


def test_an_engine_that_fails_fails_its_batch_and_no_other() -> None:
    def broken(pixels: PixelBatch) -> FloatArray:
        if pixels.max() > 100:
            raise RuntimeError("out of luck")
        return pixels[:, :1, 0, 0].astype(np.float32)

    async def main() -> tuple[object, object]:
        own = Batcher(Lane(), broken, Cost(1e-4), Batching(size=1), 1)
        return await asyncio.gather(own.submit(image(200), 60), own.submit(image(7), 60), return_exceptions=True)

    bad, good = asyncio.run(main())
    assert isinstance(bad, RuntimeError)
    assert good == 7


def test_who_leaves_or_waits_too_long_is_left_out() -> None:
    engine = Engine()

    async def main() -> list[object]:
        own = batcher(engine, Lane())
        engine.gate.clear()
        jobs = [asyncio.ensure_future(own.submit(image(level), 60)) for level in range(3)]
        await asyncio.sleep(0.05)
        late = asyncio.ensure_future(own.submit(image(3), 0.05))
        gone = asyncio.ensure_future(own.submit(image(4), 60))
        await asyncio.sleep(0.1)
        gone.cancel()
        engine.gate.set()
        return await asyncio.gather(*jobs, late, return_exceptions=True)

    *rows, late = asyncio.run(main())
    assert [int(row[0]) for row in rows] == [0, 1, 2]  # type: ignore[index]
    assert isinstance(late, VitralError)
    assert late.code == "serve.queue_timeout"
    assert sum(engine.sizes) == 3


def test_all_who_wait_too_long_are_refused_in_time() -> None:
    engine = Engine()

    async def main() -> list[object]:
        own = batcher(engine, Lane())
        engine.gate.clear()
        first = asyncio.ensure_future(own.submit(image(0), 60))
        await asyncio.sleep(0.05)  # it runs
        late = [own.submit(image(level), 0.05) for level in range(1, 4)]
        found = await asyncio.wait_for(asyncio.gather(*late, return_exceptions=True), 30)
        engine.gate.set()
        await first
        return list(found)

    codes = [each.code for each in asyncio.run(main()) if isinstance(each, VitralError)]
    assert codes == ["serve.queue_timeout"] * 3
    assert engine.sizes == [1]


def test_the_turn_of_a_job_lasts_until_it_ends_although_its_caller_left() -> None:
    ended, began = threading.Event(), list[bool]()

    def job() -> None:
        ended.wait(60)

    async def main() -> None:
        lane = Lane()
        gone = asyncio.ensure_future(lane.run_in_turn(job, 60))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0)
        with pytest.raises(VitralError):  # nobody's turn comes meanwhile
            await lane.run_in_turn(lambda: None, 0.05)
        following = asyncio.ensure_future(lane.run_in_turn(lambda: began.append(ended.is_set()), 60))
        ended.set()
        await following

    asyncio.run(main())
    assert began == [True]
