"""Pre-norm against post-norm: the encoder of the paper against that of the original Transformer."""

from collections.abc import Sequence

from vitral.experiments.checks import Check, better
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.measures import accuracy, gradient_norms, together

DEPTH: dict[Scale, int] = {"tiny": 8, "small": 12, "full": 12}


def arms(scale: Scale) -> Sequence[Arm]:
    """The two places of the norm in a model that is deep for its scale; each tries as many rates."""
    depth = {"model.depth": DEPTH[scale]}
    rates = {"tiny": (5e-4, 2e-3, 8e-3), "small": (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3), "full": (1e-4, 3e-4, 8e-4)}[scale]
    return [
        Arm("pre-norm", {"model.block": "pre", **depth}, rates=rates),
        Arm("post-norm", {"model.block": "post", **depth}, rates=rates),
    ]


EXPERIMENT = Experiment(
    title="Pre-norm against post-norm",
    claim="norms before the branches, as in the paper, train better than norms after the sums",
    arms=arms,
    checks=[
        better("pre-norm", "post-norm"),
        Check(
            "gradients at the start fall more with depth in post-norm: first over last layer, larger in pre-norm",
            {"pre-norm": 1.0, "post-norm": -1.0},
            metric="gradient_first_over_last",
        ),
    ],
    measure=together(accuracy, gradient_norms),
    differs={
        "tiny": "the paper does not compare them; 8 layers of a small model, half as many steps as other experiments",
        "small": "the paper does not compare them; 12 layers of a small model",
        "full": "the paper does not compare them",
    },
)
