"""Resizing: antialiased, on uint8, by torch, whose results are Pillow's to a level.  H rows, W columns, C channels."""

import torch
from torch.nn.functional import interpolate

from vitral.config import Size
from vitral.data.decoder.depth import Pixels
from vitral.data.transforms.view import Box, Filter, Glimpse


def resize(pixels: Pixels, size: Size, how: Filter) -> Pixels:
    """The picture at another size, (H, W, C); every pixel counts when it shrinks."""
    if pixels.shape[:2] == size:
        return pixels
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]  # (1, C, H, W), channels last in memory
    # Bicubic overshoots; on uint8 torch clamps by itself, as Pillow does.
    resized = interpolate(image, size=tuple(size), mode=how, antialias=True)
    return resized[0].permute(1, 2, 0).numpy()  # (H, W, C)


def cut(pixels: Pixels, box: Box) -> Pixels:
    """The pixels within the box."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def see(pixels: Pixels, whole: Size, glimpse: Glimpse) -> Pixels:
    """What the glimpse shows of a picture that is `whole` at full scale and may have been decoded at a smaller one."""
    part = glimpse.part.scaled(whole, Size(*pixels.shape[:2]))
    resized = resize(cut(pixels, part), glimpse.resized, glimpse.filter)
    window = cut(resized, glimpse.window)
    return window[:, ::-1] if glimpse.mirrored else window
