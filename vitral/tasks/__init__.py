"""Tasks: a model and what it is trained for. A task gives a loss and metrics."""

from typing import Annotated

from vitral.core.config import OpenUnion
from vitral.tasks.classify import Classify
from vitral.tasks.masked_patches import MaskedPatches

TaskConfig = Annotated[Classify | MaskedPatches, OpenUnion()]
