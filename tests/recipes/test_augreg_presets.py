import pytest

from vitral.data.transforms.augment import RandAugment
from vitral.data.transforms.mixup import Mixup
from vitral.recipes.augreg import AUGREG

# Magnitude of RandAugment with two layers and alpha of mixup, as big_vision's configs of AugReg list them.
TABLE = {
    "light1": (0, 0.0),
    "light2": (10, 0.2),
    "medium1": (15, 0.2),
    "medium2": (15, 0.5),
    "strong1": (20, 0.5),
    "strong2": (20, 0.8),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_is_the_papers(name: str) -> None:
    magnitude, alpha = TABLE[name]
    assert AUGREG[name].augment == (RandAugment(layers=2, magnitude=magnitude),)
    mixing = AUGREG[name].mixing
    assert (mixing.alpha if isinstance(mixing, Mixup) else 0.0) == alpha


def test_none_does_nothing_and_there_are_no_others() -> None:
    assert AUGREG["none"].augment == ()
    assert AUGREG["none"].mixing.kind == "none"
    assert set(AUGREG) == {"none", *TABLE}
