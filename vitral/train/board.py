"""Scalars for TensorBoard, where it is installed."""

from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vitral.weights.refusal import failure

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class Board:
    """Writes to `tensorboard/` in a folder; does nothing where the package is not installed.

    It is imported at the first scalar, since that takes a second.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """The scalars of a run that has come to this step; those of later steps, if there are any, are hidden."""
        self.folder, self.step = folder / FOLDER, step
        self.installed = find_spec("tensorboard") is not None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Show values, by name, after so many steps."""
        if not self.installed:
            return
        try:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()
        except OSError as error:
            raise failure(error, self.folder, "its earlier scalars are whole") from error

    def cut(self, step: int) -> None:
        """Show nothing after a step until it comes anew."""
        self.close()
        self.step = step

    def close(self) -> None:
        """Write no more."""
        if "_writer" in vars(self):
            self._writer.close()
            del self._writer

    @cached_property
    def _writer(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder), purge_step=self.step + 1)
