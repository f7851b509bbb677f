"""Table 8: position embeddings: none, 1-D, 2-D and relative; added once, in every layer, or shared by all layers."""

from collections.abc import Sequence

from vitral.experiments.checks import better, same
from vitral.experiments.experiment import Arm, Experiment, Scale

PLACES = {"stem": "stem", "layers": "every layer", "shared": "every layer, shared"}
PAPER = {  # 5-shot linear accuracy on ImageNet, B/16 pre-trained on JFT-300M
    "1-D": {"stem": 0.64206, "layers": 0.63964, "shared": 0.64292},
    "2-D": {"stem": 0.64001, "layers": 0.64046, "shared": 0.64022},
}
KINDS = {"1-D": "learned1d", "2-D": "learned2d"}


def arms(scale: Scale) -> Sequence[Arm]:
    """Every cell of the table."""
    none = Arm("none", {"model.position": "none"}, paper=0.61382)
    added = [
        Arm(f"{name}, {place}", {"model.position": kind, "model.position.where": where}, paper=PAPER[name][where])
        for name, kind in KINDS.items()
        for where, place in PLACES.items()
    ]
    return [none, *added, Arm("relative", {"model.position": "relative1d"}, paper=0.64032)]


EXPERIMENT = Experiment(
    title="Table 8: position embeddings",
    claim="positions help, and it hardly matters which kind or where they are added",
    arms=arms,
    checks=[
        better("1-D, stem", "none"),
        better("2-D, stem", "none"),
        better("relative", "none"),
        same("1-D, stem", "2-D, stem", within=0.02),
        same("1-D, stem", "relative", within=0.02),
        same("1-D, stem", "1-D, every layer", within=0.02),
    ],
    paper_name="paper, 5-shot",
    differs={
        "tiny": "a small model and 4 x 4 patches, trained with labels; test accuracy in place of 5 shots of ImageNet",
        "small": "a small model and 8 x 8 patches, trained with labels; test accuracy in place of 5 shots of ImageNet",
    },
)
