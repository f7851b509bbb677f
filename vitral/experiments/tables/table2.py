"""Table 2: headline accuracy, and the cost of pre-training recomputed in TPUv3 core-days."""

from collections.abc import Iterator, Sequence

from vitral.experiments.checks import Check, better
from vitral.experiments.cost import DAY, FLOPS_PER_SECOND
from vitral.experiments.experiment import Arm, Cell, Experiment, Scale
from vitral.experiments.figures.figure3 import GRID, of
from vitral.experiments.measures import Measured, accuracy, together
from vitral.experiments.plan import step_flops
from vitral.experiments.scales import IMAGES, count_steps, resnet
from vitral.recipes.paper import finetune_imagenet, paper_imagenet21k, paper_jft
from vitral.recipes.recipe import Epochs, Recipe

LARGE, MIDDLE, PUBLIC, RESNET = "H/14, JFT", "L/16, JFT", "L/16, ImageNet-21k", "BiT-L, JFT"
ACCURACY = {LARGE: 0.8855, MIDDLE: 0.8776, PUBLIC: 0.8530, RESNET: 0.8754}  # on ImageNet
CORE_DAYS = {LARGE: 2500, MIDDLE: 680, PUBLIC: 230, RESNET: 9900}
MODELS = {LARGE: "H/14", MIDDLE: "L/16", PUBLIC: "L/16", RESNET: "R152x4"}
EPOCHS = {LARGE: 14, MIDDLE: 14, PUBLIC: 90, RESNET: 40}  # BiT-L as in arXiv 1912.11370
# The small models in place of the originals, with compute in the proportions of the paper.
STAND_INS = {LARGE: "ViT, deeper", MIDDLE: "ViT", RESNET: "ResNet"}
BUDGETS = {LARGE: 0.5, MIDDLE: 0.136, RESNET: 1.98}


def pretraining(name: str) -> Recipe:
    data, recipe = ("imagenet21k", paper_imagenet21k) if name == PUBLIC else ("jft", paper_jft)
    return of(recipe(MODELS[name]), data).model_copy(update={"length": Epochs(epochs=EPOCHS[name])})


def core_days(cell: Cell) -> Measured:
    """Of the original's pre-training, by our count of FLOPs and the speed of a core that the paper implies."""
    name = next((each for each, label in STAND_INS.items() if label == cell.arm.name), cell.arm.name)
    recipe = pretraining(name)
    flops = count_steps(recipe, IMAGES[recipe.data.path]) * step_flops(recipe)
    return Measured({"core_days": flops / FLOPS_PER_SECOND / DAY, "paper_days": float(CORE_DAYS[name])})


def arms(scale: Scale) -> Sequence[Arm]:
    """Small models with the same proportions of compute; at full the originals, fine-tuned on ImageNet."""
    settings: dict[str, dict[str, object]] = {
        LARGE: {"model.depth": 6 if scale == "tiny" else 10},
        MIDDLE: {},
        RESNET: {"model": resnet(scale)},
    }
    small = [Arm(STAND_INS[name], settings[name], budget=BUDGETS[name], paper=ACCURACY[name]) for name in STAND_INS]
    return list(original()) if scale == "full" else small


def original() -> Iterator[Arm]:
    """Pre-training, then Table 4."""
    for name, model in MODELS.items():
        yield Arm(f"{name}, start", recipe=pretraining(name), compared=False)
        recipe = of(finetune_imagenet(model), "imagenet")
        yield Arm(name, recipe=recipe, start=f"{name}, start", rates=GRID, paper=ACCURACY[name])


def days(name: str, arm: str) -> Check:
    paper = CORE_DAYS[name]
    return Check(f"{name} takes {paper:,} core-days within 25%", {arm: 1.0}, 0.25 * paper, paper, "core_days")


EXPERIMENT = Experiment(
    title="Table 2: the state of the art and its cost",
    claim="large ViT are better than the best ResNet, at a quarter of its compute or less",
    arms=arms,
    checks=[
        better(STAND_INS[LARGE], STAND_INS[RESNET]),
        better(STAND_INS[MIDDLE], STAND_INS[RESNET]),
        better(LARGE, RESNET),
        better(MIDDLE, RESNET),
        *(days(name, arm) for name, arm in STAND_INS.items()),
    ],
    measure=together(accuracy, core_days),
    paper_name="paper, ImageNet",
    columns={"core_days": "core-days of the original", "paper_days": "paper's core-days"},
    unequal="in the proportions of the paper's core-days: 1 for H/14, 0.27 for L/16, 4 for BiT-L",
    differs=dict.fromkeys(
        ("tiny", "small"), "small models, tested on the images of their training set; no Noisy Student"
    ),
)
