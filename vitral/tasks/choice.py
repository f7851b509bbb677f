"""The tasks that exist."""

from typing import Annotated

from pydantic import Field

from vitral.tasks.classify import Classify
from vitral.tasks.masked import MaskedPatches

TaskConfig = Annotated[Classify | MaskedPatches, Field(discriminator="kind")]
