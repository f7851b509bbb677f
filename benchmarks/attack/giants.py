"""Large files that are no attack: each opens, whatever it costs."""

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

import vitral
from benchmarks.attack.case import Case
from benchmarks.attack.images import encoded
from vitral.core.config import Size
from vitral.core.manifest import Manifest, describe_files, write_manifest
from vitral.data.decoding.isolation import Isolation
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.inputs import find_images
from vitral.models.registry import model_config
from vitral.weights.bundle import Bundle

MAX_PIXELS = 108_000_000
ISOLATED = Isolation(processes=1)


@cache
def predictor(isolation: Isolation | None) -> vitral.Predictor:
    """A tiny model that takes giants."""
    with TemporaryDirectory() as folder:
        vitral.save(vitral.create_model("Ti/16", image_size=32, num_classes=2), folder)
        return vitral.Predictor(folder, engine="eager", max_pixels=MAX_PIXELS, isolation=isolation)


def predict(path: Path) -> object:
    return list(vitral.predict(predictor(None), path, strict=True))


def predict_isolated(path: Path) -> object:
    return list(vitral.predict(predictor(ISOLATED), path, strict=True))


def scene(height: int, width: int) -> Image.Image:
    """Shapes and grain, which compress about as a photo does."""
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (height // 64, width // 64, 3), dtype=np.uint8)
    grain = draw.integers(-6, 7, (256, width, 3), dtype=np.int16)
    picture = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).copy()
    for top in range(0, height, 256):
        rows = picture[top : top + 256]
        rows[:] = np.clip(rows + grain[: len(rows)], 0, 255)
    return Image.fromarray(picture)


def saved(picture: Callable[[], Image.Image], name: str, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        picture().save(folder / name, **options)
        return folder / name

    return make


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def deep_png(folder: Path) -> Path:
    """Color of 16 bits a sample, 24 megapixels."""
    samples = np.asarray(scene(4000, 6000)).astype(">u2") * 257
    pack, out = zlib.compressobj(1), io.BytesIO()
    for row in samples:
        out.write(pack.compress(b"\0" + row.tobytes()))
    out.write(pack.flush())
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 6000, 4000, 16, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", out.getvalue()) + chunk(b"IEND", b"")
    (folder / "a.png").write_bytes(data)
    return folder / "a.png"


def pages(folder: Path) -> Path:
    """A TIFF of 30 pages of 2 megapixels, compressed: 229 MB."""
    first = scene(1200, 1600)
    first.save(folder / "a.tif", save_all=True, append_images=[first] * 29, compression="tiff_lzw")
    return folder / "a.tif"


def large_bundle(folder: Path) -> Path:
    """ViT-g/14 with weights of zeros: 4 GB, of which the disk holds the header alone."""
    config = model_config("g/14", num_classes=2)
    tensors, place = {}, 0
    for name, tensor in config.build_empty().state_dict().items():
        end = place + 4 * tensor.numel()
        tensors[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + place)
    needs = Preprocessing(image_size=Size(224, 224))
    bundle = Bundle(model=config, task="classify", classes=("a", "b"), preprocessing=needs)
    (folder / "config.json").write_text(bundle.to_json())
    write_manifest(folder, Manifest(kind="bundle", files=describe_files(folder)))
    return folder


def manifest(count: int, suffix: str, exist: bool) -> Callable[[Path], Path]:
    """A list of so many images, each a link to one of a few files if they are to exist."""

    def make(folder: Path) -> Path:
        for number in range(0, count, 1000):
            (folder / f"{number // 1000}").mkdir()
        with (folder / f"list.{suffix}").open("w") as file:
            file.write("path,label\n" if suffix == "csv" else "")
            for number in range(count):
                name, label = f"{number // 1000}/{number}.jpg", f"class{number % 10}"
                line = f"{name},{label}" if suffix == "csv" else json.dumps({"path": name, "label": label})
                file.write(f"{line}\n")
                if exist and number % 50_000 == 0:
                    source = folder / name
                    source.write_bytes(encoded("jpeg", number % 7))
                elif exist:
                    (folder / name).hardlink_to(source)
        return folder / f"list.{suffix}"

    return make


def listed(path: Path) -> object:
    """What `vitral predict` does with a list before it reads the images."""
    return sum(1 for _ in find_images([str(path)], None))


def opened(path: Path) -> object:
    return vitral.open_data(str(path))


def verified(path: Path) -> object:
    """Weights that are hashed to their end: the first use of a model waits for that."""
    return vitral.load(path).model.state_dict()


def cases() -> Iterator[Case]:
    """All giants."""
    photo: dict[str, Callable[[Path], Path]] = {
        "jpeg of 108 megapixels": saved(lambda: scene(9000, 12_000), "a.jpg", quality=92),
        "progressive jpeg of 48 megapixels": saved(lambda: scene(6000, 8000), "a.jpg", quality=92, progressive=True),
        "png of 16 bits, 24 megapixels": deep_png,
        "tiff of 30 pages": pages,
    }
    for name, make in photo.items():
        yield Case("giants", name, make, predict, "works")
        yield Case("giants", f"isolated: {name}", make, predict_isolated, "works")
    yield Case("giants", "safetensors of 4 GB", large_bundle, verified, "works")
    for suffix in ("csv", "jsonl"):
        yield Case("giants", f"{suffix} of 1,000,000 images", manifest(1_000_000, suffix, False), listed, "works")
        yield Case("giants", f"{suffix} of 100,000 images", manifest(100_000, suffix, True), opened, "works")
