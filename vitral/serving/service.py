"""The service behind the routes: the models by name, and one queue, one lane and one decode pool for all of them.

H x W pixels, C channels, K classes, D width.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.requests import Request

from vitral.core.errors import DataError, ServeError, VitralError, suggest_choice
from vitral.core.machine import default_threads
from vitral.data.decoding.pixels import Pixels
from vitral.inference.engines.engine import FloatArray, OutputKind
from vitral.serving.batching.admission import Admission, Cost
from vitral.serving.batching.batcher import Batcher, Lane
from vitral.serving.batching.decode_pool import Cropped, DecodePool
from vitral.serving.config import ServeConfig
from vitral.serving.http.metrics import METRICS
from vitral.serving.http.uploads import Upload, UploadMemory, read_images
from vitral.serving.models.served_model import ServedModel, golden_pixels

if TYPE_CHECKING:
    from vitral.serving.models.maps import MapRequest, Maps
    from vitral.weights.load import LoadedModel

log = logging.getLogger("vitral")
EXPLAIN_COST = 4.0  # of an explanation, in predictions, until one was measured
T = TypeVar("T")


class Lanes(NamedTuple):
    """A model, its batchers, and the seconds that its work takes."""

    model: ServedModel
    batchers: Mapping[OutputKind, Batcher]
    explain_cost: Cost


class Service:
    """Answers requests for all models. Its methods run in one event loop."""

    def __init__(
        self,
        sources: "Mapping[str, str | Path | LoadedModel]",
        config: ServeConfig,
        private: Collection[str] = (),
    ) -> None:
        """The names in `private` are of models whose files nobody else writes to."""
        self.sources, self.config, self.limits = dict(sources), config, config.limits
        self.private = private
        self.admission = Admission(config.limits)
        self.memory = UploadMemory(config.limits)
        self.models: dict[str, Lanes] = {}
        self.is_ready = False

    async def start(self) -> None:
        """Load and warm up all models, and start the decoders."""
        self.lane = Lane()
        self.decoders = DecodePool(self.config.decoders)
        loaded = [await asyncio.to_thread(self.load, name, source) for name, source in self.sources.items()]
        self.models = {each.name: self._lanes(each) for each in loaded}
        await self.decoders.start()
        for each in self.models.values():
            await self.warm_up(each)
        self.is_ready = True

    def load(self, name: str, source: "str | Path | LoadedModel") -> ServedModel:
        """A model, checked on a fixed input."""
        model = ServedModel(name, source, self.config.engine, name in self.private)
        model.check_golden()
        return model

    def _lanes(self, model: ServedModel) -> Lanes:
        cost = Cost(0.0)
        runs = {"logits": model.run, "features": model.features}
        outputs: tuple[OutputKind, ...] = ("logits", "features")
        batchers = {
            output: Batcher(self.lane, runs[output], cost, self.config.batching, default_threads(), model.name)
            for output in outputs
        }
        return Lanes(model, batchers, Cost(0.0))

    async def warm_up(self, lanes: Lanes) -> None:
        """Measure what an image costs, so that the first requests are admitted by it."""
        model, pixels = lanes.model, golden_pixels(lanes.model.predictor.pixel_shape)
        run = model.run if model.output == "logits" else model.features
        await self.lane.run_in_turn(lambda: run(pixels), float("inf"))
        start = time.perf_counter()
        await self.lane.run_in_turn(lambda: run(pixels), float("inf"))
        seconds = (time.perf_counter() - start) / len(pixels)
        lanes.batchers["logits"].cost.seconds = seconds  # shared with the features
        lanes.explain_cost.seconds = EXPLAIN_COST * seconds

    def find(self, name: str) -> Lanes:
        """The model of this name; the first of all for an empty one."""
        if name and name not in self.models:
            message, hint = f"there is no model {name[:60]!r}", suggest_choice(name, list(self.models))
            raise ServeError(message, code="serve.unknown_model", where="model", hint=hint)
        return self.models[name or next(iter(self.models))]

    async def read_images(self, request: Request) -> list[Upload]:
        """The images of a request, whose memory is counted until it is answered."""
        start = time.perf_counter()
        uploads = await read_images(request, request.state.upload, self.limits)
        METRICS.stage("upload", "", time.perf_counter() - start)
        METRICS.load(self.admission.images, self.memory.bytes)
        return uploads

    async def outputs(self, lanes: Lanes, output: OutputKind, uploads: Sequence[Upload]) -> list[FloatArray]:
        """The logits (K,) or features (D,) of each image, in order."""
        await lanes.model.prepare(output)
        batcher = lanes.batchers[output]
        with self.admission.accept(len(uploads), batcher.cost):
            return await gather_all(self._output(lanes, batcher, upload) for upload in uploads)

    async def outputs_of_pixels(self, lanes: Lanes, output: OutputKind, pixels: Sequence[Pixels]) -> list[FloatArray]:
        """The same for images that are pixels (H, W, C) already."""
        await lanes.model.prepare(output)
        batcher = lanes.batchers[output]
        with self.admission.accept(len(pixels), batcher.cost):
            return await gather_all(batcher.submit(each, self.limits.wait_seconds) for each in pixels)

    async def _output(self, lanes: Lanes, batcher: Batcher, upload: Upload) -> FloatArray:
        batcher.decoding += 1
        try:
            cropped = await self.crop(lanes.model, upload)
        finally:
            batcher.decoding -= 1
        return await batcher.submit(cropped.pixels, self.limits.wait_seconds)

    async def crop(self, model: ServedModel, upload: Upload) -> Cropped:
        """An upload as the model takes it."""
        start = time.perf_counter()
        try:
            return await self.decoders.crop(model.bundle.preprocessing, upload.data, upload.name)
        except DataError as error:
            raise in_field(error, upload.name) from None
        finally:
            METRICS.stage("decode", model.name, time.perf_counter() - start)

    async def maps(self, lanes: Lanes, cropped: Cropped, request: "MapRequest") -> "Maps":
        """The maps of one image; the caller has been accepted."""
        import torch

        start = time.perf_counter()
        pixels = torch.from_numpy(cropped.pixels)
        image = lanes.model.bundle.preprocessing.normalize.apply(pixels.permute(2, 0, 1)[None])  # (1, C, H, W)

        def explain() -> "Maps":
            begin = time.perf_counter()
            found = lanes.model.explain(image, request)
            lanes.explain_cost.learn(1, time.perf_counter() - begin)
            return found

        found = await self.lane.run_in_turn(explain, self.limits.wait_seconds)
        METRICS.stage("explain", lanes.model.name, time.perf_counter() - start)
        return found

    async def reload(self) -> None:
        """Load every model again beside the old one, and switch to those that pass their checks."""
        for name, source in self.sources.items():
            if not isinstance(source, str | Path):
                continue
            try:
                fresh = self._lanes(await asyncio.to_thread(self.load, name, source))
                await self.warm_up(fresh)
            except Exception as error:  # whatever is wrong with it, the old one answers on
                METRICS.reload("refused")
                shown = str(error) if isinstance(error, VitralError) else f"{type(error).__name__}: {error}"
                log.error(f"model {name} was not reloaded, and the old one stays: {shown}")
                continue
            old, self.models[name] = self.models[name], fresh  # requests that hold the old one finish with it
            METRICS.reload("loaded")
            old.model.close()
            log.info(f"model {name} was reloaded: {fresh.model.title}, engine {fresh.model.engine}")
            del old, fresh
            gc.collect()  # modules refer to each other, and Python would keep the old weights for long

    def close(self) -> None:
        """End threads and child processes."""
        self.decoders.close()
        self.lane.close()
        for each in self.models.values():
            each.model.close()


async def gather_all(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all jobs; the first error cancels the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def in_field(error: DataError, name: str) -> DataError:
    """An error about an upload, with the field of the request that it came in."""
    message = error.message if name == "image" else f"{name}: {error.message}"
    return DataError(message, code=error.code, where="image", hint=error.hint)
