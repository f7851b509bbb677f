"""The tasks that exist."""

from typing import Annotated

from pydantic import Field

from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches

TaskConfig = Annotated[Classify | MaskedPatches, Field(discriminator="kind")]
