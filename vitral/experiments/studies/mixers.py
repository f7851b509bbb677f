"""MetaFormer: attention, pooling, identity and token MLPs as mixers, and a ResNet, at the same compute."""

from collections.abc import Sequence

from vitral.experiments.checks import better
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.scales import resnet

PLAIN = {"model.tokens.cls": False, "model.pool": "mean"}  # pooling and identity mix patches alone
OTHERS = {"pooling": "pooling", "identity": "identity", "token MLP": "token_mlp"}


def arms(scale: Scale) -> Sequence[Arm]:
    """Every mixer in the same blocks, with as many FLOPs of training."""
    others = [Arm(name, PLAIN | {"model.mixer": kind}) for name, kind in OTHERS.items()]
    return [Arm("attention", PLAIN), *others, Arm("ResNet", {"model": resnet(scale)})]


EXPERIMENT = Experiment(
    title="MetaFormer: which mixer",
    claim="blocks with pooling come close to attention, and blocks that mix nothing learn, too (arXiv 2111.11418)",
    arms=arms,
    checks=[
        better("attention", "identity"),
        better("pooling", "identity"),
        better("token MLP", "identity"),
        better("attention", "pooling"),
    ],
    differs={
        "tiny": "not of this paper; one stage of a plain ViT in place of the four stages of PoolFormer",
        "small": "not of this paper; one stage of a plain ViT in place of the four stages of PoolFormer",
        "full": "not of this paper; one stage of a plain ViT in place of the four stages of PoolFormer",
    },
)
