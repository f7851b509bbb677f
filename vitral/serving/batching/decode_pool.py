"""Decoding of uploads: in a bounded number of child processes, beside inference.  H x W pixels, C channels."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from vitral.core.config import Size
from vitral.core.machine import cpu_count
from vitral.data.decoding.decode import ImageDecoder, decode_image
from vitral.data.decoding.isolation import IsolatedDecoder, Isolation
from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import native_decoding, to_rgb_image
from vitral.data.transforms.crop import CropPlan
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import crop_and_resize, resize
from vitral.inference.batches import lower_priority

T = TypeVar("T")
CPU_SECONDS, WALL_SECONDS = 10.0, 20.0  # for one upload
MAX_SIDE = 1024  # pixels of a photo under a map


class Cropped(NamedTuple):
    """What the model is given of an image, and how it was cut out."""

    pixels: Pixels  # (H, W, C)
    plan: CropPlan
    size: Size  # of the whole image


class DecodePool:
    """Threads that hand uploads to child processes: a file that breaks its decoder costs only itself."""

    def __init__(self, processes: int = 0) -> None:
        self.processes = processes or cpu_count()
        limits = Isolation(processes=self.processes, cpu_seconds=CPU_SECONDS, wall_seconds=WALL_SECONDS)
        self.decode: ImageDecoder = decode_image if sys.platform == "win32" else limits.build()
        self._threads = ThreadPoolExecutor(self.processes, "decode", lower_priority)

    async def crop(self, needs: Preprocessing, data: bytes, name: str) -> Cropped:
        """An image as the model takes it."""
        return await self._run(lambda: crop_image(needs, data, name, self.decode))

    async def photo(self, data: bytes, name: str) -> Pixels:
        """The whole image in its own colors (h, w, 3), reduced for display."""
        return await self._run(lambda: reduce_image(data, name, self.decode))

    async def start(self) -> None:
        """Start the child processes, so that the first uploads do not wait for them."""
        file = BytesIO()
        Image.new("L", (8, 8)).save(file, "png")
        await asyncio.gather(*(self.photo(file.getvalue(), "first") for _ in range(self.processes)))

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, job)

    def close(self) -> None:
        """End the threads and their child processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if isinstance(self.decode, IsolatedDecoder):
            self.decode.close()


def crop_image(needs: Preprocessing, data: bytes, name: str, decode: ImageDecoder) -> Cropped:
    """The pixels of `Preprocessing.pixels`, with the crop that they are."""
    needs.check_readable(name)
    decoded = decode(data, name, needs.decoding, lambda size: plan_crop(needs, size).min_size(size))
    size = decoded.header.size
    plan = plan_crop(needs, size)
    return Cropped(np.ascontiguousarray(crop_and_resize(decoded.pixels, size, plan)), plan, size)


def plan_crop(needs: Preprocessing, size: Size) -> CropPlan:
    """The part of an image of this size that the model is given."""
    return needs.crop.plan(size, needs.image_size)


def reduce_image(data: bytes, name: str, decode: ImageDecoder) -> Pixels:
    """The whole image as RGB, at most 1,024 pixels a side."""
    decoded = decode(data, name, native_decoding(data, name), shown_size)
    shown = shown_size(decoded.header.size)
    return np.asarray(to_rgb_image(resize(decoded.pixels, shown, "bilinear")))


def shown_size(size: Size) -> Size:
    """The size at which an image is shown."""
    scale = min(1.0, MAX_SIDE / max(size))
    return Size(*(max(1, round(side * scale)) for side in size))
