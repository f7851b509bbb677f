"""Pictures of every kind that the decoder knows, the same on every machine, and a small folder to train on."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

EACH = {"train": 12, "val": 4, "test": 4}  # images of each class


def scene(height: int, width: int) -> np.ndarray[Any, Any]:
    """Waves and noise, (H, W, 3)."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [128 + 90 * np.sin(rows / (3 + hue) + columns / (7 - hue)) for hue in range(3)]
    noise = np.random.default_rng([height, width]).integers(-30, 30, (height, width, 3))
    return (np.stack(waves, axis=-1) + noise).clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def pictures() -> dict[str, bytes]:
    """Files by name."""
    color = Image.fromarray(scene(45, 70))
    gray, alpha = color.convert("L"), color.copy()
    alpha.putalpha(color.rotate(90).resize(color.size).convert("L"))
    palette = color.quantize(16)
    deep = Image.fromarray((np.asarray(gray).astype(np.uint16) * 251 + 77).astype(np.uint16))
    turned = Image.Exif()
    turned[274] = 6
    array = io.BytesIO()
    np.save(array, scene(20, 30))
    large = Image.fromarray(scene(300, 410))
    return {
        "color.jpg": encoded(color, "JPEG", quality=85),
        "large.jpg": encoded(large, "JPEG", quality=80),
        "progressive.jpg": encoded(large, "JPEG", quality=70, progressive=True),
        "gray.jpg": encoded(gray, "JPEG"),
        "cmyk.jpg": encoded(color.convert("CMYK"), "JPEG"),
        "turned.jpg": encoded(color, "JPEG", exif=turned),
        "color.png": encoded(color, "PNG"),
        "gray.png": encoded(gray, "PNG"),
        "bits.png": encoded(gray.convert("1"), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "palette.png": encoded(palette, "PNG"),
        "palette_alpha.png": encoded(palette, "PNG", transparency=3),
        "alpha.png": encoded(alpha, "PNG"),
        "gray_alpha.png": encoded(alpha.convert("LA"), "PNG"),
        "color.webp": encoded(color, "WEBP", lossless=True),
        "color.bmp": encoded(color, "BMP"),
        "palette.gif": encoded(palette, "GIF"),
        "color.tiff": encoded(color, "TIFF"),
        "array.npy": array.getvalue(),
    }


def write_photos(folder: Path) -> Path:
    """Dark photos of one class, bright ones of another, as PNG and as JPEG of different shapes."""
    for split, count in EACH.items():
        for label, level in (("bright", 150), ("dark", 90)):
            home = folder / split / label
            home.mkdir(parents=True)
            for number in range(count):
                shape = (24 + number % 3 * 8, 32, 3)
                noise = np.random.default_rng([number, level, len(split)]).integers(-80, 80, shape)
                image = Image.fromarray((level + noise).astype(np.uint8))
                image.save(home / (f"{number:02}.png" if number % 2 else f"{number:02}.jpg"))
    return folder
