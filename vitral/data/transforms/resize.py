"""Resizing: antialiased, on uint8, as torch does it, whose results are Pillow's to a level.

Where torch was not imported NumPy gives the same bytes: to answer for a picture, an export needs no more.
H rows, W columns, C channels.
"""

from typing import TYPE_CHECKING

from vitral.config import Size
from vitral.data.decoder.depth import Pixels
from vitral.data.transforms.taps import resized
from vitral.data.transforms.view import Box, Filter, Glimpse
from vitral.importing import is_imported

if TYPE_CHECKING:
    from torch import Tensor


def resize(pixels: Pixels, size: Size, how: Filter) -> Pixels:
    """The picture at another size, (H, W, C); every pixel counts when it shrinks."""
    if pixels.shape[:2] == size:
        return pixels
    if not is_imported("torch"):
        return resized(pixels, size, how)
    from torch.nn.functional import interpolate

    # Bicubic overshoots; on uint8 torch clamps by itself, as Pillow does.
    return _pixels(interpolate(_image(pixels), size=tuple(size), mode=how, antialias=True))


def mirror(pixels: Pixels) -> Pixels:
    """Left and right exchanged. NumPy's reversed view is slow to copy, pixel by pixel."""
    return _pixels(_image(pixels).flip(-1))


def cut(pixels: Pixels, box: Box) -> Pixels:
    """The pixels within the box."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def see(pixels: Pixels, whole: Size, glimpse: Glimpse) -> Pixels:
    """What the glimpse shows of a picture that is `whole` at full scale and may have been decoded at a smaller one."""
    part = glimpse.part.scaled(whole, Size(*pixels.shape[:2]))
    resized = resize(cut(pixels, part), glimpse.resized, glimpse.filter)
    window = cut(resized, glimpse.window)
    return mirror(window) if glimpse.mirrored else window


def _image(pixels: Pixels) -> "Tensor":
    """As torch wants images, (1, C, H, W), with channels last in memory, which its quick kernels ask for."""
    import torch

    return torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)


def _pixels(image: "Tensor") -> Pixels:
    """As everything else wants them, (H, W, C)."""
    return image[0].permute(1, 2, 0).numpy()
