"""The families there are, those first in which a model that several can hold is written."""

from vitral.weights.formats.huggingface.clip import HfClip
from vitral.weights.formats.huggingface.dinov2 import HfDinov2
from vitral.weights.formats.huggingface.dinov3 import HfDinov3
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.siglip import HfSiglip
from vitral.weights.formats.huggingface.vit import HfDeit, HfMae, HfVit

FAMILIES: tuple[Family, ...] = (HfVit(), HfDeit(), HfDinov2(), HfDinov3(), HfMae(), HfClip(), HfSiglip())
