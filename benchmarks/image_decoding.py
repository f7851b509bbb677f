"""From files to pixels, against the usual ways: a random crop on one core, a large photo, and two workers for one."""

import atexit
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.compare import Case
from benchmarks.photos import jpeg
from vitral.core.config import Size
from vitral.core.rng import Purpose, rng_for
from vitral.data.datasets.source import open_data
from vitral.data.decoding.decode import open_image
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Shuffled
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.preprocessing import CENTERED, Preprocessing, decode_and_crop
from vitral.weights.oracles.torchvision_stub import import_torchvision

Way = Callable[[bytes], object]
CROP = Case(
    "500x375 JPEG to a random 224 crop, one core",
    images=64,
    goal=2.0,
    engines=("vitral", "torchvision v2 tensor", "torchvision v2 pillow", "pillow", "simplejpeg and cv2"),
    rivals=("torchvision v2 tensor",),
)
WHOLE = Case(
    "the same to a batch of 64 for the model, normalized",
    images=64,
    goal=2.0,
    engines=("vitral", "torchvision v2 tensor"),
    rivals=("torchvision v2 tensor",),
)
LARGE = Case(
    "12-megapixel JPEG to 224, one core",
    images=4,
    goal=1 / 1.2,
    engines=("vitral", "pillow with draft", "simplejpeg", "pyvips"),
    rivals=("pillow with draft", "simplejpeg", "pyvips"),
)
WORKERS = Case(
    "two workers for one", images=4096, goal=1.8, engines=("two workers", "one worker"), rivals=("one worker",)
)
CASES = (CROP, WHOLE, LARGE, WORKERS)
IMAGE = Size(224, 224)


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """One step of the case: every photo once."""
    if case == WORKERS:
        return epochs(case, {"one worker": 1, "two workers": 2}[engine])
    torch.set_num_threads(1)
    size = (3000, 4000) if case == LARGE else (375, 500)
    files = [jpeg(*size, seed) for seed in range(case.images)]
    if case == WHOLE:
        return whole(engine, files)
    way = (photos if case == LARGE else crops)(engine)
    return lambda: [way(data) for data in files]


def whole(engine: str, files: list[bytes]) -> Callable[[], object]:
    """A batch of float32 images, mean 0.5 and deviation 0.5: ours scales the batch, torchvision each image."""
    if engine == "vitral":
        ring, see = np.empty((len(files), *IMAGE, 3), dtype=np.uint8), our_crop()

        def step() -> object:
            for row, data in enumerate(files):
                ring[row] = see(data)
            return CENTERED.apply(torch.from_numpy(ring.copy()).permute(0, 3, 1, 2))

        return step
    v2 = import_torchvision("torchvision.transforms.v2")
    crop = torchvision_crop(lambda image, v2: v2.functional.pil_to_tensor(image))
    scale = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
    return lambda: torch.stack([scale(crop(data)) for data in files])


def epochs(case: Case, workers: int) -> Callable[[], object]:
    """An epoch of a folder of photos, none of which is kept in memory."""
    root = Path(mkdtemp(prefix="vitral-benchmark-"))
    atexit.register(rmtree, root, ignore_errors=True)
    files = [jpeg(375, 500, seed) for seed in range(64)]
    for number in range(case.images):
        path = root / "train" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[number % len(files)])
    samples = open_data(str(root))
    sight = ImagePipeline(IMAGE, Decoding(), RandomResizedCrop())
    whole = Loader.of(samples, "train", sight, Shuffled(), batch=64, workers=workers)
    loader = Loader(samples.of("train"), samples.store, sight, whole.plan, workers, cache_bytes=0)
    return lambda: sum(1 for _ in loader.epoch())  # the workers end with it: none works ahead in another's turn


def crops(engine: str) -> Way:
    match engine:
        case "vitral":
            return our_crop()
        case "torchvision v2 tensor":
            return torchvision_crop(lambda image, v2: v2.functional.pil_to_tensor(image))
        case "torchvision v2 pillow":
            return torchvision_crop(lambda image, v2: image)
        case "pillow":
            return lambda data: np.asarray(_pillow(data).resize((224, 224), Image.Resampling.BILINEAR, box=_corners()))
        case _:
            return lambda data: _resized_by_cv2(_simplejpeg(data))


def our_crop() -> Callable[[bytes], Pixels]:
    view, decoding, counts = RandomResizedCrop(), Decoding(), iter(range(10**9))

    def see(data: bytes) -> Pixels:
        picture = open_image(data, "photo.jpg", decoding)
        plan = view.plan(picture.size, IMAGE, rng_for(0, Purpose.VIEW, 0, next(counts)))
        return np.ascontiguousarray(decode_and_crop(picture, plan))

    return see


def torchvision_crop(convert: Callable[[Image.Image, Any], Any]) -> Way:
    v2 = import_torchvision("torchvision.transforms.v2")
    torch.manual_seed(0)
    crop = v2.Compose([v2.RandomResizedCrop(224, scale=(0.05, 1.0), antialias=True), v2.RandomHorizontalFlip()])
    return lambda data: crop(convert(_pillow(data), v2))


def photos(engine: str) -> Way:
    match engine:
        case "vitral":
            return lambda data: Preprocessing(image_size=IMAGE).pixels(data, "photo.jpg")
        case "pillow with draft":
            return _drafted
        case "simplejpeg":
            return lambda data: _resized_by_cv2(_simplejpeg(data, min_height=224, min_width=224))
        case _:
            os.environ["VIPS_CONCURRENCY"] = "1"  # which it reads once, on import
            vips = import_module("pyvips")
            return lambda data: vips.Image.thumbnail_buffer(data, 224, height=224, size="force").numpy()


def _drafted(data: bytes) -> object:
    image = Image.open(BytesIO(data))
    image.draft("RGB", (224, 224))
    return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR))


def _pillow(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data)).convert("RGB")


def _simplejpeg(data: bytes, **least: int) -> Any:
    return import_module("simplejpeg").decode_jpeg(data, **least)


def _resized_by_cv2(pixels: Any) -> object:
    """As fast as it goes: cv2's area filter for a whole photo; for a crop its bilinear, which is not antialiased."""
    cv2 = _cv2()
    if pixels.shape[:2] == (375, 500):
        left, top, right, bottom = _corners()
        return cv2.resize(pixels[top:bottom, left:right], (224, 224))
    return cv2.resize(pixels, (224, 224), interpolation=cv2.INTER_AREA)


@cache
def _cv2() -> Any:
    cv2 = import_module("cv2")
    cv2.setNumThreads(1)
    return cv2


@cache
def _boxes() -> Iterator[tuple[int, int, int, int]]:
    rng = np.random.default_rng(0)
    while True:
        part = RandomResizedCrop().plan(Size(375, 500), IMAGE, rng).box
        yield part.left, part.top, part.left + part.width, part.top + part.height


def _corners() -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the next random part."""
    return next(_boxes())
