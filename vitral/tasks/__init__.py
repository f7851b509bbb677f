"""Tasks: a model and what it is trained for. A task gives a loss and metrics."""

from typing import Annotated

from vitral.core.config import OpenUnion
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.beit import Beit
from vitral.tasks.selfsupervised.dino import Dino
from vitral.tasks.selfsupervised.ibot import Ibot
from vitral.tasks.selfsupervised.igpt import Igpt
from vitral.tasks.selfsupervised.ijepa import Ijepa
from vitral.tasks.selfsupervised.lejepa import Lejepa
from vitral.tasks.selfsupervised.mae import Mae
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.tasks.selfsupervised.moco_v3 import MocoV3
from vitral.tasks.selfsupervised.simmim import SimMim

TaskConfig = Annotated[
    Classify | MaskedPatches | Mae | SimMim | Beit | Igpt | Dino | Ibot | MocoV3 | Ijepa | Lejepa, OpenUnion()
]
