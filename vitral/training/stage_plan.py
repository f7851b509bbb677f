"""The plan of staged fine-tuning, by what a forward pass costs.

After the head is fitted, the last layers train on tokens that were computed once, and then all layers. A stage that
does not fit into the time is not started; the last layers train for an epoch at least.
"""

from typing import NamedTuple

STEP_COST = 3  # of a training step, in forward passes of its layers
FINISH_SECONDS = 15.0  # for bundles and the report
MAX_VIEWS = 3  # of an image
LAST_EPOCHS = 12  # of the last layers, at most


class StageCosts(NamedTuple):
    """What the plan of the stages depends on."""

    image: float  # seconds of a forward pass
    train: int  # images
    val: int  # images that are evaluated after every epoch
    final: int  # images that are evaluated at the end
    share: float  # of the last layers in a forward pass
    views: int  # of an image whose tokens fit into memory; 0 if none can be kept


class StagePlan(NamedTuple):
    """Epochs of the last layers, on so many views of each image in memory, and epochs of all layers after them."""

    views: int
    last_epochs: int
    all_epochs: int


def plan_epochs(costs: StageCosts, seconds: float, least: float, most: float) -> StagePlan:
    """The longest stages that fit into a time. All layers train for `most` epochs at most, and only if `least` fit."""
    share, images, views = costs.share, costs.image * costs.train, min(MAX_VIEWS, costs.views)
    left = seconds - costs.image * (costs.train + costs.val + costs.final) - FINISH_SECONDS
    all_epoch = STEP_COST * images + costs.image * costs.val
    last_epoch = share * all_epoch if views else (1 + (STEP_COST - 1) * share) * images + costs.image * costs.val
    view = (1 - share) * images  # the first has been computed to fit the head
    whole = min(most, (left - max(0, views - 1) * view - LAST_EPOCHS * last_epoch) / all_epoch)
    if whole >= least:
        return StagePlan(views, LAST_EPOCHS, max(1, int(whole)))
    while views > 1 and (views - 1) * view > left / 2:
        views -= 1
    last = (left - max(0, views - 1) * view) / last_epoch
    return StagePlan(views, max(1, min(LAST_EPOCHS, int(last))), 0)
