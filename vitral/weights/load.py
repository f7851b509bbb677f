"""Loading: a path becomes a model that is ready to use."""

import re
from pathlib import Path
from typing import NamedTuple

from vitral.errors import WeightsError
from vitral.model.contract import Model
from vitral.weights.bundle import MODEL, Bundle, is_bundle, read_bundle

EXPECTED = "expected the folder of a bundle (model.safetensors, config.json), or of a run (best/, last/)"


class Loaded(NamedTuple):
    """A model with its weights, in evaluation mode, and all that they need."""

    model: Model
    bundle: Bundle


def load(where: str | Path) -> Loaded:
    """The model of a bundle, or the best of a run: `model, bundle = vitral.load("runs/photos")`.

    Its weights are mapped from the disk as they are used, and changing them changes no file.
    """
    home = bundle_of(Path(where))
    bundle, tensors = read_bundle(home)
    model = bundle.model.skeleton()
    try:
        model.load(tensors)
    except WeightsError as error:
        raise WeightsError(error.what, where=str(home / MODEL), remedy=error.remedy) from None
    return Loaded(model.eval(), bundle)


def bundle_of(path: Path) -> Path:
    """The bundle that a path stands for: the folder itself, or a run's best, or its last where there is no best."""
    for home in (path, path / "best", path / "last"):
        if is_bundle(home):
            return home
    raise _no_bundle(path)


def _no_bundle(path: Path) -> WeightsError:
    """What the path is instead, and what to give."""
    where = str(path)
    if not path.exists():
        return WeightsError(f"there is no such folder; {EXPECTED}", where=where, remedy="check the path")
    if path.is_file():
        remedy = f"give the folder: {path.parent}" if is_bundle(path.parent) else "give a bundle or a run"
        return WeightsError(f"a file; {EXPECTED}", where=where, remedy=remedy)
    if re.fullmatch(r"step-[0-9]+", path.name) and path.parent.name == "checkpoints":
        run = path.parent.parent
        return WeightsError(
            f"a checkpoint, which is for its run to go on from; {EXPECTED}",
            where=where,
            remedy=f"give the run, {run}, or one of its bundles, {run / 'best'} and {run / 'last'}",
        )
    if (path / "recipe.json").exists():
        remedy = f"let it go on until its first evaluation: vitral train --resume {path}"
        return WeightsError("a run that has written no bundle yet", where=where, remedy=remedy)
    return WeightsError(f"a folder that is neither; {EXPECTED}", where=where, remedy="check the path")
