"""Self-supervised methods with small settings, and runs of them in float64: by one process or several, stopped or not.

A method that is added to `METHODS` is run by two processes, sharded, stopped, and in microbatches.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.training.distributed.race import float64
from vitral.core.config import Size
from vitral.data.samples import Samples
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.data.transforms.views import MultiCrop, OneView, TwoViews, View, ViewsConfig
from vitral.models import Causal, Palette, Resnet, Vit
from vitral.models.registry import model_config
from vitral.recipes.recipe import Images, Recipe, Steps
from vitral.runs.build import RunParts, build_run, fit_task
from vitral.tasks import TaskConfig
from vitral.tasks.selfsupervised.beit import Beit
from vitral.tasks.selfsupervised.dino import Dino, DinoOutputs, SinkhornKnopp
from vitral.tasks.selfsupervised.ibot import Ibot, SeparatePatchHead
from vitral.tasks.selfsupervised.igpt import Igpt, Masked
from vitral.tasks.selfsupervised.ijepa import Ijepa, Predictor
from vitral.tasks.selfsupervised.lejepa import Lejepa, SigRegOutputs
from vitral.tasks.selfsupervised.mae import Decoder, Mae
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches, WholePatch
from vitral.tasks.selfsupervised.moco_v3 import MocoHead, MocoV3
from vitral.tasks.selfsupervised.schedules import ConstantTemperature, CosineMomentum
from vitral.tasks.selfsupervised.simmim import SimMim
from vitral.tasks.selfsupervised.targets.codes import PatchCodes
from vitral.tasks.selfsupervised.targets.features import TeacherFeatures
from vitral.training.checkpoints.state import SavedState, restore_state, saved_state, state_tensors
from vitral.training.clip import PerParameterClip
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import Ddp, DistributedConfig, find_newest_for_all
from vitral.training.loop import Microbatch, StepResult, train
from vitral.training.optimizers import AdamW, CosineDecay
from vitral.training.schedules import Cosine

STEPS, STOP = 20, 5
BATCH = 4
MODEL = model_config(
    "Ti/16", {"image_size": 16, "stem.patch": 2, "width": 16, "depth": 2, "mixer.heads": 2, "head": "none"}
)


class Method(NamedTuple):
    """A task and the views that it is given."""

    task: TaskConfig
    views: ViewsConfig = OneView()
    model: Vit | Resnet = MODEL
    lr: float = 5e-3


PIXELS: dict[str, object] = {"image_size": 8, "stem": Palette(colors=8), "pool": "mean"}
LOCAL = View(crop=RandomResizedCrop(area=(0.2, 0.5)), size=Size(8, 8))
CROPS = MultiCrop(local=LOCAL, local_views=2)
OUTPUTS = DinoOutputs(outputs=24, hidden=20, bottleneck=8, frozen_length=False)
FAST = CosineMomentum(start=0.9)  # so that 20 steps move the teacher
METHODS: dict[str, Method] = {
    "masked_patches": Method(MaskedPatches(target=WholePatch())),
    "mae": Method(Mae(decoder=Decoder(width=16, depth=1, heads=2))),
    "simmim": Method(SimMim(unit=Size(4, 4))),
    "beit": Method(Beit(least=2, target=PatchCodes(codes=8))),
    "beit_features": Method(Beit(least=2, target=TeacherFeatures(layers=2))),
    "igpt": Method(Igpt(), model=model_config(MODEL, {**PIXELS, "mixer": Causal(heads=2)})),
    "igpt_masked": Method(Igpt(objective=Masked()), model=model_config(MODEL, PIXELS)),
    "dino": Method(
        Dino(head=OUTPUTS, momentum=FAST, teacher_temperature=ConstantTemperature(), frozen_last_layer=0.1), CROPS
    ),
    "dino_sinkhorn": Method(Dino(head=OUTPUTS, momentum=FAST, targets=SinkhornKnopp()), CROPS),
    # A lower rate: BatchNorm over four images is chaotic. At 5e-3 a change of 1e-16 grows to 7e-7 within 20 steps.
    "moco_v3": Method(MocoV3(head=MocoHead(hidden=20, outputs=8), momentum=FAST), TwoViews(), lr=2e-3),
    "ibot": Method(Ibot(head=OUTPUTS, momentum=FAST), CROPS),
    "ibot_sinkhorn_koleo": Method(
        Ibot(
            head=OUTPUTS, patch_head=SeparatePatchHead(head=OUTPUTS), momentum=FAST, targets=SinkhornKnopp(), koleo=0.1
        ),
        CROPS,
    ),
    "ijepa": Method(Ijepa(predictor=Predictor(width=16, depth=1, heads=2), momentum=FAST)),
    "lejepa": Method(Lejepa(head=SigRegOutputs(hidden=20, outputs=8), slices=16), CROPS),
}
SOME = ("dino_sinkhorn",)  # in the default tests: one with sums over the batch of all processes


def recipe(name: str, distributed: DistributedConfig, microbatches: int = 1, workers: int = 0) -> Recipe:
    """A run of a method whose every step is the same for any number of processes."""
    method = METHODS[name]
    return Recipe(
        model=method.model,
        images=Images(views=method.views),
        task=method.task,
        length=Steps(steps=STEPS),
        batch_size=BATCH,
        microbatches=microbatches,
        # A larger epsilon than usual, or Adam would blow up the rounding of gradients that ought to be 0.
        optimizer=AdamW(lr=method.lr, eps=1e-4, weight_decay=0.04, decay_schedule=CosineDecay(end=0.4)),
        schedule=Cosine(warmup=2),
        clip=PerParameterClip(max_norm=3.0),
        distributed=distributed,
        device="cpu",
        workers=workers,
        threads=1,
    )


class Logging(NamedTuple):
    """Notes the loss and all metrics of every step."""

    lines: list[list[float]]

    def due(self, step: int, steps: int) -> bool:
        return True

    def run(self, step: int, result: StepResult) -> None:
        self.lines.append([*result.read().metrics.values()])


class MethodRun:
    """A run of a method, new; to be used inside of `float64`."""

    def __init__(self, given: Recipe, samples: Samples, group: ProcessGroup) -> None:
        self.given, self.samples, self.group = given, samples, group
        self.parts: RunParts = build_run(given, samples, group)
        self.lines: list[list[float]] = []

    def run(self, start: int, stop: int = STEPS) -> "MethodRun":
        """Take the steps from one up to another."""
        parts = self.parts
        if not start:
            fit_task(parts.state.task, self.given, self.samples, self.group)
        found = parts.batches(start, stop)
        batches = ([_double(microbatch) for microbatch in step] for step in found)
        train(parts.strategy.module, batches, parts.update_rule, start, stop, [Logging(self.lines)])
        found.close()
        return self

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint."""
        writer = self.parts.strategy.checkpoint_writer(folder, 2)
        saved = saved_state(self.parts.state, self.parts.plan, step).model_dump(mode="json")
        writer.save(step, state_tensors(self.parts.state), saved, None)
        writer.close()
        self.group.barrier()

    def resume(self, folder: Path) -> int:
        """Go back to the newest checkpoint, and give its step."""
        checkpoint = find_newest_for_all(folder, self.group).checkpoint
        assert checkpoint is not None
        tensors, state = self.parts.strategy.load_checkpoint(checkpoint)
        assert isinstance(state, dict)
        return restore_state(self.parts.state, self.parts.plan, tensors, SavedState.parse(state))

    def weights(self) -> dict[str, Tensor]:
        """All weights and buffers that a checkpoint has."""
        return self.parts.strategy.full_state_dict(self.parts.state.task)

    def bits(self) -> dict[str, bytes]:
        """Every byte of what a checkpoint has."""
        groups = state_tensors(self.parts.state)
        return {f"{group}/{name}": each.numpy().tobytes() for group in groups for name, each in groups[group].items()}


def _double(microbatch: Microbatch) -> Microbatch:
    images = microbatch.images
    double = images.double() if isinstance(images, Tensor) else tuple(group.double() for group in images)
    return microbatch._replace(images=double)


def alone(name: str, samples: Samples, microbatches: int = 1, workers: int = 0) -> MethodRun:
    """A run of one process."""
    return MethodRun(recipe(name, Ddp(), microbatches, workers), samples, ProcessGroup(torch.device("cpu")))


def run_methods(
    folder: Path, samples: Samples, group: ProcessGroup, names: Sequence[str], kinds: Sequence[DistributedConfig]
) -> None:
    """Run each of these methods through, and once more with a stop on the way; keep what comes of it."""
    with float64():
        for name in names:
            for kind in kinds:
                label, given = f"{name}-{kind.kind}", recipe(name, kind)
                _keep(folder / label, MethodRun(given, samples, group).run(0))
                MethodRun(given, samples, group).run(0, STOP).save(folder / f"saved-{label}", STOP)
                second = MethodRun(given, samples, group)
                _keep(folder / f"{label}-stopped", second.run(second.resume(folder / f"saved-{label}")))


def _keep(path: Path, run: MethodRun) -> None:
    weights = run.weights()
    if run.group.is_main:
        tensors = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
        save_file(tensors, path.with_suffix(".safetensors"))
        path.with_suffix(".json").write_text(json.dumps(run.lines))
