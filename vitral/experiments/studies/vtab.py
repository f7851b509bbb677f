"""VTAB: 19 tasks in three groups with 1,000 training images each (arXiv 1910.04867)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vitral.core.errors import DataError
from vitral.experiments.checks import Check
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import of
from vitral.recipes.paper import finetune_vtab, paper_jft
from vitral.recipes.recipe import DataConfig, Recipe
from vitral.runs.request import open_samples


class Task(NamedTuple):
    """A task of the suite."""

    group: str
    paper: float  # accuracy of H/14
    stand_in: str = ""


TASKS = {
    "Caltech101": Task("natural", 0.953), "CIFAR-100": Task("natural", 0.855, "cifar100"),
    "DTD": Task("natural", 0.752), "Flowers102": Task("natural", 0.997),
    "Pets": Task("natural", 0.972), "Sun397": Task("natural", 0.650), "SVHN": Task("natural", 0.889, "mnist"),
    "Camelyon": Task("specialized", 0.833), "EuroSAT": Task("specialized", 0.967),
    "Resisc45": Task("specialized", 0.914), "Retinopathy": Task("specialized", 0.766),
    "Clevr-Count": Task("structured", 0.917, "shapes-count"), "Clevr-Dist": Task("structured", 0.638),
    "DMLab": Task("structured", 0.531), "dSpr-Loc": Task("structured", 0.794, "shapes-location"),
    "dSpr-Ori": Task("structured", 0.633, "shapes-orientation"), "KITTI-Dist": Task("structured", 0.845),
    "sNORB-Azim": Task("structured", 0.332), "sNORB-Elev": Task("structured", 0.512),
}  # fmt: skip
IMAGES, LENGTH = 1_000, 0.5  # of training; of fine-tuning, by that of pre-training
SCRATCH = ", from scratch"
SHAPES = ("shapes-count", "shapes-location", "shapes-orientation")
NOTE = "generated images for 3 of 19 tasks, CIFAR-100 and MNIST for 2 where they are on disk; none is specialized"


def arms(scale: Scale) -> Sequence[Arm]:
    """Fine-tuned against trained from scratch on every stand-in that is here; at full all 19 tasks."""
    recipe, start = finetune_vtab("H/14"), Arm("H/14", recipe=of(paper_jft("H/14"), "jft"), compared=False)
    tasks = [Arm(name, recipe=of(recipe, name), start="H/14", paper=task.paper) for name, task in TASKS.items()]
    return [start, *tasks] if scale == "full" else [Arm("start", compared=False), *stand_ins()]


def stand_ins() -> Iterator[Arm]:
    """Two arms for each."""
    for _, paper, data in TASKS.values():
        if count := training_images(data):
            settings = {"data.path": data, "data.fraction": min(1.0, IMAGES / count)}
            yield Arm(data, settings, start="start", budget=LENGTH, paper=paper)
            yield Arm(data + SCRATCH, settings, budget=1 + LENGTH)


def training_images(data: str) -> int:
    """How many there are; 0 if the data is not on this machine."""
    try:
        return len(open_samples(Recipe(data=DataConfig(path=data))).of("train")) if data else 0
    except DataError:
        return 0


def gain(*tasks: str) -> dict[str, float]:
    """The mean difference."""
    return {f"{task}{name}": sign / len(tasks) for task in tasks for name, sign in {"": 1.0, SCRATCH: -1.0}.items()}


EXPERIMENT = Experiment(
    title="VTAB: transfer with 1,000 images",
    claim="pre-training helps on tasks of all kinds with 1,000 images each",
    arms=arms,
    checks=[
        *(Check(f"pre-training helps on {data}", gain(data)) for data in SHAPES),
        Check("pre-training helps on structured tasks", gain(*SHAPES)),
        Check("the mean over 19 tasks is 77.6%", dict.fromkeys(TASKS, 1 / 19), within=0.02, target=0.776),
    ],
    paper_name="H/14 on the original",
    differs=dict.fromkeys(("tiny", "small"), NOTE),
)
