"""Table 6: the compute of pre-training, recomputed for every model in exaFLOPs."""

from collections.abc import Sequence

from vitral.experiments.checks import equals
from vitral.experiments.experiment import Arm, Cell, Experiment, Scale
from vitral.experiments.measures import Measured
from vitral.experiments.plan import step_flops
from vitral.experiments.scales import IMAGES, count_steps
from vitral.recipes.paper import paper_jft
from vitral.recipes.recipe import Epochs

# Model, epochs on JFT-300M, exaFLOPs.
ROWS = (
    ("B/32", 7, 55), ("B/16", 7, 224), ("L/32", 7, 196), ("L/16", 7, 783), ("L/16", 14, 1567), ("H/14", 14, 4262),
    ("R50x1", 7, 50), ("R50x2", 7, 199), ("R101x1", 7, 96), ("R152x1", 7, 141), ("R152x2", 7, 563),
    ("R152x2", 14, 1126), ("R200x3", 14, 3306), ("R50+B/32", 7, 106), ("R50+B/16", 7, 274), ("R50+L/32", 7, 246),
    ("R50+L/16", 7, 859), ("R50+L/16", 14, 1668),
)  # fmt: skip
WITHIN = 0.1  # of the paper's count: it rounds, and does not say how it counts


def arms(scale: Scale) -> Sequence[Arm]:
    """A row for each model and length."""
    return [
        Arm(f"{model}, {epochs} epochs", recipe=recipe, paper=float(cost), x=float(cost), group=family(model))
        for model, epochs, cost in ROWS
        for recipe in [paper_jft(model).model_copy(update={"length": Epochs(epochs=epochs)})]
    ]


def family(model: str) -> str:
    """ViT, ResNet or hybrid."""
    return "hybrid" if "+" in model else "ResNet" if model.startswith("R") else "ViT"


def exaflops(cell: Cell) -> Measured:
    """Of the whole pre-training."""
    return Measured({"exaflops": count_steps(cell.recipe, IMAGES["jft"]) * step_flops(cell.recipe) / 1e18})


EXPERIMENT = Experiment(
    title="Table 6: the compute of pre-training",
    claim="pre-training on JFT-300M takes 50 to 4,262 exaFLOPs",
    arms=arms,
    checks=[equals(f"{model}, {epochs} epochs", cost, within=WITHIN * cost) for model, epochs, cost in ROWS],
    measure=exaflops,
    metric="exaflops",
    metric_name="exaFLOPs",
    share=False,
    trained=False,
)
