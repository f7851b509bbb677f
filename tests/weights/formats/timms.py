"""A small model as timm writes it."""

from torch import Tensor

from tests.models.references import reference

HINTS = ("mixer.heads=3", "image_size=32x48")  # its width is no published model's, its images are no squares


def timm_tensors() -> dict[str, Tensor]:
    return reference("timm_vit").weights
