"""Models that do not change while they serve, whatever happens to their files.

Weights are mapped from the disk. A file that is overwritten in place would change the answers of a running server, and
one that is cut off would end it by SIGBUS. So a server copies the weights into its memory; what only files can give, as
the engine of an export, is read from a private copy of them. Worker processes map one such copy, and share its pages.
"""

import shutil
from pathlib import Path

import torch

from vitral.core.errors import VitralError
from vitral.core.storage import STORAGE, os_error_message
from vitral.inference.exported import is_export, read_export
from vitral.models.base import Model
from vitral.weights.bundle import read_bundle
from vitral.weights.load import find_bundle


def copy_weights(model: Model) -> None:
    """Replace the weights of a model by copies in memory."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()


def copy_files(source: str | Path, target: Path) -> bool:
    """Copy the files of a bundle or an export to a folder, in place of the copy that is there; False for any other.

    A damaged model is refused, and the copy that is there stays. One that is replaced stays readable for those who have
    mapped it.
    """
    path = Path(source).expanduser()
    home = path if is_export(path) else find_bundle(path)
    if home is None:
        return False
    fresh, old = target.with_name(f"{target.name}.new"), target.with_name(f"{target.name}.old")
    try:
        for each in (fresh, old):
            shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(home, fresh)
        if is_export(fresh):
            read_export(fresh).check.wait()
        else:
            read_bundle(fresh)
        STORAGE.replace_folder(fresh, target, old)
    except OSError as error:
        hint = "free the disk, or set TMPDIR to a folder on another"
        message = f"cannot copy {home}: {os_error_message(error)}"
        raise VitralError(message, code="file.write_failed", where=target, hint=hint) from None
    return True
