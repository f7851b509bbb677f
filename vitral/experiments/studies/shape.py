"""D.2: depth, width, MLP width and patch size, each scaled alone, and all at once."""

from collections.abc import Sequence

from vitral.experiments.checks import better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.recipes.paper import paper_jft

PATHS = {
    "depth": "model.depth",
    "width": "model.width",
    "MLP width": "model.mlp.ratio",
    "patch size": "model.stem.patch",
}
# The base, and what it is scaled to.
STEPS: dict[Scale, dict[str, tuple[float, float]]] = {
    "tiny": {"depth": (2, 4), "width": (32, 64), "MLP width": (2.0, 4.0), "patch size": (16, 8)},
    "small": {"depth": (3, 6), "width": (48, 96), "MLP width": (2.0, 4.0), "patch size": (8, 4)},
    "full": {"depth": (8, 16), "width": (1024, 2048), "MLP width": (2.0, 4.0), "patch size": (32, 16)},
}


def arms(scale: Scale) -> Sequence[Arm]:
    """The base, each axis scaled alone, and all."""
    steps = STEPS[scale]
    base = {PATHS[axis]: pair[0] for axis, pair in steps.items()} | {"model.mixer.heads": 4 if scale != "full" else 16}
    recipe = paper_jft("B/32") if scale == "full" else None
    scaled = {axis: {PATHS[axis]: pair[1]} for axis, pair in steps.items()}
    scaled["all"] = {path: value for settings in scaled.values() for path, value in settings.items()}
    # The MLP has a ratio: a model that is twice as wide has an MLP as wide as before at half of it.
    scaled["width"] |= {PATHS["MLP width"]: steps["MLP width"][0] / 2}
    named = {"base": {}, **{f"{axis} x 2" if axis != "all" else axis: each for axis, each in scaled.items()}}
    return [Arm(name, base | settings, recipe=recipe, group=name) for name, settings in named.items()]


EXPERIMENT = Experiment(
    title="D.2: which axis to scale",
    claim="depth helps most and width least, and smaller patches help at equal parameters",
    arms=arms,
    checks=[
        better("depth x 2", "base"),
        better("patch size x 2", "base", "patches of half the side are better"),
        better("depth x 2", "width x 2"),
        better("all", "base"),
    ],
    budget="images",
    unequal="it is what is scaled; all see as many images",
    differs={
        "tiny": "a small model, trained with labels; test accuracy in place of 5 shots of ImageNet",
        "small": "a small model, trained with labels; test accuracy in place of 5 shots of ImageNet",
    },
    figure=lines("FLOPs of training", of="flops"),
)
