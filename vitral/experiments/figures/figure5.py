"""Figure 5: performance against the compute of training, for ViT, hybrid and ResNet."""

from collections.abc import Sequence

from vitral.experiments.checks import better
from vitral.experiments.drawing import lines
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.figures.figure3 import families, of
from vitral.experiments.tables.table6 import ROWS, family
from vitral.recipes.paper import paper_jft
from vitral.recipes.recipe import Epochs

BUDGETS = (0.25, 0.5, 1.0)


def arms(scale: Scale) -> Sequence[Arm]:
    """Each family at each budget."""
    if scale == "full":
        rows = [(model, Epochs(epochs=epochs)) for model, epochs, _ in ROWS]
        return [
            Arm(
                f"{model}, {length.epochs:g} epochs",
                recipe=of(paper_jft(model), "jft").model_copy(update={"length": length}),
                group=family(model),
            )
            for model, length in rows
        ]
    return [
        Arm(f"{name}, {budget:.0%}", settings, budget=budget, group=name)
        for name, settings in families(scale).items()
        for budget in BUDGETS
    ]


EXPERIMENT = Experiment(
    title="Figure 5: performance against compute",
    claim="for the same compute ViT is better than ResNets, and hybrids are better than ViT only at small budgets",
    arms=arms,
    checks=[
        better("ViT, 100%", "ResNet, 100%"),
        better("ViT, 50%", "ResNet, 50%"),
        better("hybrid, 25%", "ViT, 25%"),
        better("B/16, 7 epochs", "R152x1, 7 epochs"),
        better("R50+B/32, 7 epochs", "B/32, 7 epochs"),
    ],
    unequal="it is the horizontal axis; families have the same budgets",
    differs={
        "tiny": "budgets are lengths of training of one small model a family, tested on the set that it is trained on",
        "small": "budgets are lengths of training of one small model a family, tested on the set that it is trained on",
    },
    figure=lines("FLOPs of training", of="flops"),
)
