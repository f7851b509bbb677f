"""D.5: images a second and the largest batch against the size of the images, measured on this machine."""

import time
from collections.abc import Sequence

import torch

from vitral.experiments.checks import better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Cell, Experiment, Scale
from vitral.experiments.inspection import largest_batch
from vitral.experiments.measures import Measured
from vitral.models.hooks import eval_mode
from vitral.models.registry import model_config

MODELS: dict[Scale, tuple[str, ...]] = {
    "tiny": ("Ti/16", "S/16", "R50x1"),
    "small": ("S/32", "S/16", "B/32", "B/16", "L/32", "R50x1", "R50x2"),
    "full": ("B/32", "B/16", "L/32", "L/16", "H/14", "R50x1", "R50x2", "R152x2"),
}
SIZES: dict[Scale, tuple[int, ...]] = {"tiny": (64, 128, 224), "small": (64, 128, 224, 384), "full": (224, 384, 512)}
BATCH, BATCHES = 8, 3  # images; timed in one measurement
LIKE = "R50x1"  # of as many multiply-adds as S/16


def arms(scale: Scale) -> Sequence[Arm]:
    """Every model at every size."""
    return [
        Arm(f"{name}, {size} px", {"model": model_config(name, image_size=side(name, size))}, group=name, x=float(size))
        for name in MODELS[scale]
        for size in SIZES[scale]
    ]


def side(name: str, size: int) -> int:
    """The nearest multiple of the patch: 14 does not divide 384 and 512."""
    patch = model_config(name).token_size().height
    return round(size / patch) * patch


@torch.inference_mode()
def speed(cell: Cell) -> Measured:
    """Images a second of inference, after one batch that is not counted, and the largest batch of training."""
    config = cell.recipe.model
    model, images = config.build(), torch.rand(BATCH, config.channels, *config.image_size)
    with eval_mode(model):
        model(images)
        begin = time.perf_counter()
        for _ in range(BATCHES):
            model(images)
        seconds = time.perf_counter() - begin
    with torch.inference_mode(mode=False):
        batch = float(largest_batch(config))
    return Measured({"speed": BATCH * BATCHES / seconds, "batch": batch})


EXPERIMENT = Experiment(
    title="D.5: speed and memory by image size",
    claim="ViT are as fast as ResNets of the same compute, and larger batches of them fit in memory",
    arms=arms,
    checks=[
        *(better(f"S/16, {size} px", f"{LIKE}, {size} px") for size in SIZES["tiny"]),
        better("B/16, 224 px", "R50x2, 224 px"),
        *(better(f"S/16, {size} px", f"{LIKE}, {size} px", f"batch at {size} px", "batch") for size in SIZES["tiny"]),
    ],
    measure=speed,
    metric="speed",
    metric_name="images a second",
    share=False,
    columns={"batch": "largest batch in 16 GB"},
    trained=False,
    times=5,
    differs=dict.fromkeys(
        MODELS, "not a TPUv3 core; memory is counted for a training step, and 16 GB is that of a core"
    ),
    figure=lines("image size in pixels"),
)
