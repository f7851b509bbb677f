"""The decoder: from the bytes of a file to uint8 pixels.  H rows, W columns, C channels.

No color profile is applied, alpha is not gamma-corrected, and the first frame of an animation is the image. JPEG is
decoded by libjpeg-turbo through simplejpeg: the pixels of Pillow in two thirds of the time. Pillow decodes the other
formats; what it converts wrongly is corrected: 16 bits and floats, transparent colors of 2-, 4- and 16-bit PNGs, the
uncovered part of a GIF. Ambiguous modes are refused.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.decoding.damage import (
    avif_damage,
    is_harmless,
    is_warning,
    libtiff_messages,
    missing_scans,
    png_damage,
)
from vitral.data.decoding.header import (
    OUT_OF_MEMORY,
    Decoding,
    Header,
    JpegScale,
    decode_error,
    pillow_reader,
    read_header,
)
from vitral.data.decoding.memory import process_budget
from vitral.data.decoding.pixels import (
    BAND_PIXELS,
    Pixels,
    bands,
    floats_to_8bit,
    is_16bit_color,
    raw_mode,
    read_array,
    to_8bit,
)
from vitral.data.decoding.tiff import tiff_damage

COLORS = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}  # Pillow's modes in the words of simplejpeg
NO_END = "Premature end of JPEG file"
log = logging.getLogger("vitral")


def decode_jpeg(
    data: bytes, mode: str, stored: tuple[int, int], scale: int, lenient: bool = True
) -> tuple[Pixels | None, str]:
    """Pixels as stored, (H, W, 1, 3 or 4), at 1/scale, and how they are damaged; None for what Pillow must decode.

    `stored` is the height and width in the file, before EXIF orientation. A file without an end goes to Pillow, which
    distinguishes a missing end marker from missing pixels, and so does one that libjpeg gives up. A damaged file is
    decoded a second time only if the decoder is lenient.
    """
    height, width = (-(-side // scale) for side in stored)
    damage = ""
    try:
        pixels = simplejpeg.decode_jpeg(data, COLORS[mode], min_height=height, min_width=width)
    except ValueError as error:
        message = str(error)
        if "Insufficient memory" in message:
            raise MemoryError(message) from None
        if not is_warning(message) or NO_END in message:
            return None, ""
        damage = "" if is_harmless(message, data) else f"pixels are lost or wrong: {message}"
        if damage and not lenient:
            return None, damage
        try:
            pixels = simplejpeg.decode_jpeg(data, COLORS[mode], min_height=height, min_width=width, strict=False)
        except ValueError:  # of a warning about the header
            return None, damage
    return pixels if pixels.shape[:2] == (height, width) else None, damage


OnDamage = Callable[[str, str], object]  # called with the name of a damaged image that is used, and the damage


@cache  # once for each file, whatever the number of epochs
def log_damage(name: str, damage: str) -> None:
    """Log that a damaged image is used."""
    log.warning("%s: damaged, and used as it decodes: %s", name, damage)


FULL_SIZE = Size(65_535, 65_535)  # the largest JPEG: as a minimum size it means full scale


def jpeg_scale(size: Size, min_size: Size, choice: JpegScale) -> int:
    """The denominator that a JPEG is decoded at: the largest of 8, 4, 2, 1 that leaves the minimum size.

    `triple` leaves three times that, where the image is as large: the resize that follows then hides how a decoder
    reduces, and the pixels are nearly those of a full decode.

    A last row or column that covers less than a whole one does not count. The scale depends on the two sizes alone, so
    that training, evaluation and serving see the same pixels.
    """
    if choice == "full":
        return 1
    if choice == "triple":
        min_size = Size(3 * min_size.height, 3 * min_size.width)
    fits = [
        scale
        for scale in (8, 4, 2)
        if size.height // scale >= min_size.height and size.width // scale >= min_size.width
    ]
    return fits[0] if fits else 1


@dataclass(frozen=True)
class EncodedImage:
    """An image whose header has been read and checked, not yet decoded."""

    data: bytes
    name: str
    decoding: Decoding
    header: Header
    image: ImageFile | None  # none for an .npy file
    memory: int  # bytes that decoding it takes
    on_damage: OnDamage = log_damage  # if the decoder is lenient

    @property
    def size(self) -> Size:
        """Height and width once upright, at full scale."""
        return self.header.size

    def pixels(self, min_size: Size) -> Pixels:
        """The image, upright, (H, W, C). A JPEG is reduced by `jpeg_scale`, to no less than `min_size`."""
        try:
            with process_budget().reserve(self.memory):
                return self._decode(min_size)
        except MemoryError:
            hint = "make it smaller"
            raise DataError(OUT_OF_MEMORY, code="data.out_of_memory", where=self.name, hint=hint) from None

    def _decode(self, min_size: Size) -> Pixels:
        if self.image is None:
            return convert_channels(read_array(self.data, self.name), self.decoding.channels)
        scale = jpeg_scale(self.size, min_size, self.decoding.jpeg_scale) if self.header.format == "JPEG" else 1
        pixels = self._samples(self.image, scale)  # (H, W, 1 to 4)
        if pixels.shape[2] in {2, 4}:
            pixels = composite_alpha(pixels, self.decoding.background)
        if self.header.format != "TIFF":  # Pillow has turned a TIFF already
            pixels = apply_orientation(pixels, self.header.orientation)
        declared = Size(-(-self.size.height // scale), -(-self.size.width // scale))
        if pixels.shape[:2] != declared:
            message = f"declares {declared}, holds {Size(*pixels.shape[:2])}"
            raise DataError(message, code="data.corrupt_image", where=self.name, hint="save it again as PNG or JPEG")
        return convert_channels(pixels, self.decoding.channels)

    def _samples(self, image: ImageFile, scale: int) -> Pixels:
        """As stored, with or without alpha: (H, W, 1 to 4)."""
        if self.header.format == "JPEG" and self.header.mode in COLORS:
            quick, damage = decode_jpeg(
                self.data, self.header.mode, (image.height, image.width), scale, self.decoding.lenient
            )
            if quick is not None and not damage and "progressive" in image.info:
                damage = missing_scans(self.data)
            self._report(damage)
            if quick is not None and self.header.mode != "CMYK":  # Pillow knows which of these are inverted
                return quick
            del quick  # of a large image, before the next copy
        if scale > 1:
            image.draft("", (image.width // scale, image.height // scale))
        if self.header.format == "PNG":
            self._report(png_damage(self.data))
        if self.header.format == "AVIF":
            self._report(self._avif_damage(image))
        if self.header.format != "TIFF":
            return read_samples(image, self.header, self.data, self.name)
        assert isinstance(image, TiffImageFile)
        damage = tiff_damage(image, self.data)
        self._report(damage)
        with libtiff_messages() as messages:
            samples = read_samples(image, self.header, self.data, self.name)
        if not damage:
            self._report("; ".join(dict.fromkeys(messages)))
        return samples

    def _avif_damage(self, image: ImageFile) -> str:
        try:
            return avif_damage(self.data, Size(image.height, image.width))
        except ValueError as error:
            return str(error)

    def _report(self, damage: str) -> None:
        """Raise an error for damage; a lenient decoder names the file and goes on."""
        if damage and not self.decoding.lenient:
            hint = "remove it or fetch it again; to use it as it decodes: --lenient"
            raise DataError(damage, code="data.damaged_image", where=self.name, hint=hint)
        if damage:
            self.on_damage(self.name, damage)


def open_image(data: bytes, name: str, decoding: Decoding, on_damage: OnDamage = log_damage) -> EncodedImage:
    """Open an image by its header; a DataError if it is no image or exceeds a limit."""
    return EncodedImage(data, name, decoding, *read_header(data, name, decoding), on_damage)


def decode(data: bytes, name: str, decoding: Decoding, min_size: Size) -> Pixels:
    """The image in the bytes of a file, upright, (H, W, C): see `EncodedImage.pixels`."""
    return open_image(data, name, decoding).pixels(min_size)


class Decoded(NamedTuple):
    """A decoded image: what its file declares, and its pixels (H, W, C)."""

    header: Header
    pixels: Pixels


class ImageDecoder(Protocol):
    """Decodes a file once its size is known: `decode_image`, or one that works in other processes."""

    def __call__(
        self,
        data: bytes,
        name: str,
        decoding: Decoding,
        min_size: Callable[[Size], Size],
        on_damage: OnDamage = log_damage,
    ) -> Decoded:
        """The image, at a scale that leaves the minimum size for its full size."""
        ...


def decode_image(
    data: bytes,
    name: str,
    decoding: Decoding,
    min_size: Callable[[Size], Size],
    on_damage: OnDamage = log_damage,
) -> Decoded:
    """The decoder of this process."""
    image = open_image(data, name, decoding, on_damage)
    return Decoded(image.header, image.pixels(min_size(image.size)))


def convert_channels(pixels: Pixels, channels: int) -> Pixels:
    """Gray repeated or color as ITU-R 601 luma where the counts differ."""
    if pixels.shape[2] == channels:
        return np.ascontiguousarray(pixels)
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.array(Image.fromarray(pixels).convert("L"))[..., None]


def apply_orientation(pixels: Pixels, orientation: int) -> Pixels:
    """The image rotated and mirrored as the EXIF orientation says."""
    turned = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    rows = slice(None, None, -1) if orientation in {3, 4, 7, 8} else slice(None)
    columns = slice(None, None, -1) if orientation in {2, 3, 6, 7} else slice(None)
    return turned[rows, columns]


def composite_alpha(pixels: Pixels, background: tuple[int, int, int]) -> Pixels:
    """Gray or color with straight alpha, (H, W, 2 or 4), on a background: c a + b (1 - a), to the nearest level."""
    composed = np.empty((*pixels.shape[:2], 3), dtype=np.uint8)
    for rows in bands(*pixels.shape[:2]):
        alpha = pixels[rows, :, -1].astype(np.uint16)
        for channel, ground in enumerate(background):
            values = pixels[rows, :, min(channel, pixels.shape[2] - 2)] * alpha
            values += (255 - alpha) * np.uint16(ground) + np.uint16(128)
            composed[rows, :, channel] = (
                values + (values >> 8) >> 8
            )  # v / 255 to the nearest, much faster than dividing
    return composed


BITS, PHOTOMETRIC, PLANES = 258, 262, 284  # tags of a TIFF
CONVERSIONS = {"1": "L", "La": "LA", "CMYK": "RGB", "YCbCr": "RGB"}
DIRECT = {"L", "LA", "RGB", "RGBA"}  # modes that need no conversion
OTHER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}  # byte orders at the end of raw modes
KEYED = {"1", "L", "RGB", "I;16"}  # modes in which one value can mean transparent


def read_samples(image: ImageFile, header: Header, data: bytes, name: str) -> Pixels:
    """Gray, gray and alpha, color, or color and alpha: (H, W, 1 to 4), as stored, except that a TIFF is upright."""
    if isinstance(image, TiffImageFile) and image.tag_v2.get(PLANES, 1) != 1 and max(image.tag_v2.get(BITS, (1,))) > 8:
        message = "more than 8 bits per sample in separate planes"  # Pillow makes noise of it
        raise DataError(message, code="data.unsupported_image", where=name, hint="save it interleaved")
    if is_16bit_color(image):
        return _wide_color(image, header, data, name)
    if isinstance(image, WebPImageFile | AvifImageFile):
        return _whole_frame(image, header, data, name)
    covered = image.tile[0].extents if header.format == "GIF" else None
    if header.mode == "F" and image.tile[0].codec_name == "libtiff":
        set_raw_mode(image, "F;32NF")  # libtiff gives native order; Pillow would swap the bytes of some once more
    _load(image, header, data, name)
    if image.mode in {"P", "PA"}:
        samples = to_array(image, "RGBA" if image.has_transparency_data else "RGB")
    elif image.mode in CONVERSIONS:
        samples = to_array(image, CONVERSIONS[image.mode])
    elif image.mode in DIRECT:
        samples = to_array(image, image.mode)
    else:
        samples = _deep_gray(image, name)
    if image.mode in KEYED and "transparency" in image.info:
        values = np.asarray(image) if image.mode == "I;16" else samples
        return _with_alpha(samples, _differs(values, _key(image, data)))
    if covered and covered != (0, 0, *image.size) and "transparency" not in image.info:
        left, top, right, bottom = covered
        inside = np.zeros(samples.shape[:2], dtype=np.bool_)  # pixels of the canvas that the first frame covers
        inside[top:bottom, left:right] = True
        return _with_alpha(samples, inside)
    return samples.reshape(*samples.shape[:2], -1)


def to_array(image: Image.Image, mode: str) -> Pixels:
    """The pixels of an image in a mode, (H, W) or (H, W, C)."""
    if image.width * image.height <= BAND_PIXELS:
        return np.array(image if image.mode == mode else image.convert(mode))
    channels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.empty((image.height, image.width, *channels), dtype=np.uint8)
    for rows in bands(image.height, image.width):
        part = image.crop((0, rows.start, image.width, rows.stop))
        pixels[rows] = np.asarray(part if part.mode == mode else part.convert(mode))
    return pixels


def set_raw_mode(image: ImageFile, raw: str) -> None:
    """Have an image that is not loaded yet unpack its samples in another raw mode."""
    image.tile = [
        tile._replace(args=(raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw) for tile in image.tile
    ]


def _load(image: ImageFile, header: Header, data: bytes, name: str) -> None:
    try:
        image.load()
    except Exception as error:  # Pillow raises almost any exception for damaged bytes
        raise decode_error(data, name, header.format, error) from error


def _whole_frame(image: WebPImageFile | AvifImageFile, header: Header, data: bytes, name: str) -> Pixels:
    """The first frame of a WebP or AVIF, (H, W, 3 or 4), straight from its decoder.

    `load` would hold two more copies of it, and all that the decoder holds.
    """
    try:
        if isinstance(image, WebPImageFile):
            frame, channels = image._get_next()[0], 4
        else:
            frame, channels = image._decoder.get_frame(0)[0], len(image.getbands())
    except Exception as error:  # Pillow raises almost any exception for damaged bytes
        raise decode_error(data, name, header.format, error) from error
    image._decoder = None  # with the planes and canvases that it holds
    samples = np.frombuffer(frame, dtype=np.uint8).reshape(image.height, image.width, channels)
    return samples[..., : len(image.getbands())].copy()


def _deep_gray(image: ImageFile, name: str) -> Pixels:
    """Gray of 12 or 16 bits or floats, (H, W)."""
    values = np.asarray(image)
    dark_is_high = isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == 0  # Pillow ignores it
    if image.mode == "F":
        levels = floats_to_8bit(values, name)
    elif image.mode in {"I;16", "I;16B"}:
        bits = image.tag_v2[BITS][0] if isinstance(image, TiffImageFile) else 16
        levels = np.empty(values.shape, dtype=np.uint8)
        for rows in bands(*values.shape):
            levels[rows] = to_8bit(values[rows], 2**bits - 1)
    else:
        message = f"pixels of mode {image.mode}, from {values.min()} to {values.max()}, are ambiguous as an image"
        raise DataError(message, code="data.unsupported_image", where=name, hint="save it with 8 or 16 bits per sample")
    return 255 - levels if dark_is_high else levels


def _wide_color(image: ImageFile, header: Header, data: bytes, name: str) -> Pixels:
    """Color of 16 bits per sample, (H, W, 2 to 4).

    Pillow has no color mode of 16 bits and keeps the first byte of each sample. Read in the other byte order, the
    same file gives the second.
    """
    raw = raw_mode(image)
    if raw.startswith("RGBa"):
        message = "16-bit color with premultiplied alpha"
        raise DataError(message, code="data.unsupported_image", where=name, hint="save it with straight alpha")

    def load(mode: str) -> Pixels:
        copy = pillow_reader(data, name, header.format)
        set_raw_mode(copy, mode)
        _load(copy, header, data, name)
        return np.asarray(copy)

    if raw == "LA;16B":  # has no other order, but its four bytes a pixel can be read as four samples
        pairs = load("RGBA")  # (H, W, 4)
        first, second = pairs[..., 0::2], pairs[..., 1::2]  # each (H, W, 2)
    else:
        first, second = load(raw), load(raw[:-1] + OTHER[raw[-1]])  # each (H, W, C)
    samples, opaque = np.empty(first.shape, dtype=np.uint8), np.ones(first.shape[:2], dtype=np.bool_)
    for rows in bands(*first.shape[:2]):
        values = first[rows].astype(np.uint16) * np.uint16(256) + second[rows]
        samples[rows] = to_8bit(values, 65_535)
        if "transparency" in image.info:
            opaque[rows] = _differs(values, image.info["transparency"])
    if image.mode == "CMYK":
        return np.array(Image.fromarray(samples, "CMYK").convert("RGB"))
    return _with_alpha(samples, opaque) if "transparency" in image.info else samples


def _key(image: ImageFile, data: bytes) -> int | tuple[int, ...]:
    """The transparent value on the scale of the pixels: Pillow widens the 2 or 4 bits of a gray PNG, not its key."""
    key: int | tuple[int, ...] = image.info["transparency"]
    if image.format == "PNG" and image.mode == "L" and isinstance(key, int):
        return key * 255 // (2 ** data[24] - 1)  # byte 24 of a PNG is its bit depth
    return key


def _differs(values: NDArray[np.generic], key: int | tuple[int, ...]) -> NDArray[np.bool_]:
    """Where a pixel is not the one transparent value, (H, W)."""
    different = values.reshape(*values.shape[:2], -1) != np.array(key)
    return different.any(axis=-1)


def _with_alpha(samples: Pixels, opaque: NDArray[np.bool_]) -> Pixels:
    return np.dstack([samples, np.where(opaque, 255, 0).astype(np.uint8)])
