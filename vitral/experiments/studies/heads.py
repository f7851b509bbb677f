"""D.3: the class token against mean pooling, each with a learning rate of its own."""

from collections.abc import Sequence

from vitral.experiments.checks import same
from vitral.experiments.drawing import over_rates
from vitral.experiments.experiment import Arm, Experiment, Scale

MEAN = {"model.tokens.cls": False, "model.pool": "mean"}


def arms(scale: Scale) -> Sequence[Arm]:
    """Two ways to one vector, and the rates that are tried for both."""
    rates = {"tiny": (5e-4, 1e-3, 2e-3, 4e-3), "small": (5e-4, 1e-3, 2e-3, 4e-3), "full": (1e-4, 3e-4, 8e-4)}[scale]
    return [Arm("class token", rates=rates), Arm("mean pooling", MEAN, rates=rates)]


EXPERIMENT = Experiment(
    title="D.3: class token against mean pooling",
    claim="a class token and mean pooling work equally well, each with its own learning rate",
    arms=arms,
    checks=[same("class token", "mean pooling", within=0.02)],
    differs={
        "tiny": "a small model, trained with labels; test accuracy in place of 5 shots of ImageNet",
        "small": "a small model, trained with labels; test accuracy in place of 5 shots of ImageNet",
    },
    figure=over_rates,
)
