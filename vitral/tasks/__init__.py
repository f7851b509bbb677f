"""Tasks: a model and what it is trained for. A task gives a loss and metrics."""

from typing import Annotated

from pydantic import Field

from vitral.tasks.classify import Classify
from vitral.tasks.masked_patches import MaskedPatches

TaskConfig = Annotated[Classify | MaskedPatches, Field(discriminator="kind")]
