"""Table 7: Adam against SGD for the pre-training of ResNets."""

from collections.abc import Sequence

from vitral.experiments.checks import better
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.scales import resnet
from vitral.recipes.paper import paper_jft

SGD = {"optimizer": "sgd", "optimizer.weight_decay": 1e-4}
PAPER = {"Adam": 0.8933, "SGD": 0.8879}  # R50x1: the mean over five datasets after fine-tuning


def arms(scale: Scale) -> Sequence[Arm]:
    """Two optimizers, each with rates around its usual one."""
    if scale == "full":
        adam = paper_jft("R50x1")
        sgd = paper_jft("R50x1").model_copy(update={"name": "paper_jft, SGD"})
        return [
            Arm("Adam", recipe=adam, rates=(3e-4, 1e-3, 3e-3), paper=PAPER["Adam"]),
            Arm("SGD", SGD, recipe=sgd, rates=(0.03, 0.1, 0.3), paper=PAPER["SGD"]),
        ]
    model = {"model": resnet(scale)}
    return [
        Arm("Adam", model, rates=(1e-3, 3e-3, 1e-2), paper=PAPER["Adam"]),
        Arm("SGD", model | SGD, rates=(0.03, 0.1, 0.3), paper=PAPER["SGD"]),
    ]


EXPERIMENT = Experiment(
    title="Table 7: Adam against SGD for ResNets",
    claim="ResNets are better pre-trained with Adam than with SGD",
    arms=arms,
    checks=[better("Adam", "SGD")],
    paper_name="paper, 5 datasets",
    differs={
        "tiny": "a small ResNet, compared by its own test accuracy and not after fine-tuning on other data",
        "small": "a small ResNet, compared by its own test accuracy and not after fine-tuning on other data",
    },
)
