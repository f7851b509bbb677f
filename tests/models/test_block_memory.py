"""Computing activations again changes what is held, never what is learned."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.variants import small
from vitral.models import (
    Attention,
    GradientCheckpointing,
    KeepActivations,
    MeanPool,
    Mlp,
    PreNorm,
    Relative2d,
    Rope2d,
    Tokens,
    Vit,
)

PLAIN: dict[str, object] = {"depth": 4, "pool": MeanPool()}
CASES: dict[str, dict[str, object]] = {
    "plain": PLAIN,
    "class token": {"depth": 4},
    "dropout everywhere": {
        **PLAIN,
        "tokens": Tokens(dropout=0.3),
        "mixer": Attention(heads=2, attention_dropout=0.3, dropout=0.3),
        "mlp": Mlp(dropout=0.3),
        "block": PreNorm(drop_path_rate=0.5),
    },
    "skipped branches": {**PLAIN, "block": PreNorm(drop_path_rate=0.5, drop_path_mode="skip")},
    "relative positions": {**PLAIN, "position": Relative2d()},
    "rotary positions": {**PLAIN, "position": Rope2d()},
}


class Step:
    """One training step from a given start: its loss, its gradients, and the bytes that autograd held meanwhile."""

    def __init__(self, config: Vit, weights: dict[str, Tensor]) -> None:
        self.model = config.build()
        self.model.load_weights(weights)
        self._held: dict[int, Tensor] = {}
        images, labels = torch.rand(4, 3, 32, 48), torch.arange(4)
        torch.manual_seed(7)
        with torch.autograd.graph.saved_tensors_hooks(self._hold, lambda tensor: tensor):
            self.loss = F.cross_entropy(self.model(images), labels)
        weights_held = {weight.untyped_storage().data_ptr() for weight in self.model.parameters()}
        self.held = sum(
            tensor.untyped_storage().nbytes() for place, tensor in self._held.items() if place not in weights_held
        )
        self.loss.backward()

    def _hold(self, tensor: Tensor) -> Tensor:
        self._held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor


def step(memory: KeepActivations | GradientCheckpointing, fields: dict[str, object]) -> Step:
    torch.manual_seed(1)
    config = small(memory=memory, **fields)
    weights = {name: weight + torch.randn_like(weight) * 0.1 for name, weight in config.build().state_dict().items()}
    return Step(config, weights)


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES.keys())
def test_recomputing_gives_the_same_loss_and_gradients(fields: dict[str, object]) -> None:
    kept, recomputed = step(KeepActivations(), fields), step(GradientCheckpointing(), fields)
    assert kept.loss.equal(recomputed.loss)
    for (name, one), other in zip(kept.model.named_parameters(), recomputed.model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.equal(other.grad), name


def test_dropout_falls_differently_from_step_to_step_all_the_same() -> None:
    model = small(memory=GradientCheckpointing(), **CASES["dropout everywhere"]).build()
    images = torch.rand(4, 3, 32, 48)
    assert not model.forward_pooled(images).equal(model.forward_pooled(images))


def test_recomputing_holds_one_tensor_a_block() -> None:
    kept, recomputed = step(KeepActivations(), PLAIN), step(GradientCheckpointing(), PLAIN)
    tokens = 4 * (1 + 4 * 6) * 32 * 4  # bytes of a batch of 4
    stem, end = 4 * 24 * 192 * 4, 2 * tokens + 2 * 4 * 25 * 4 + 5_000  # cut pixels; last norm and head
    assert 4 * tokens <= recomputed.held <= 4 * tokens + stem + end
    assert kept.held > 4 * recomputed.held


def test_each_further_block_holds_its_input_and_nothing_else() -> None:
    shallow, deep = (step(GradientCheckpointing(), {**PLAIN, "depth": depth}) for depth in (3, 5))
    assert deep.held - shallow.held == 2 * (4 * 25 * 32 * 4)


def test_nothing_is_computed_twice_when_nothing_is_learned() -> None:
    model = small(memory=GradientCheckpointing()).build()
    runs: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        model(torch.rand(1, 3, 32, 48))
    assert len(runs) == 1
    model.eval()(torch.rand(1, 3, 32, 48)).sum().backward()  # gradients are asked for, whatever the mode
    assert len(runs) == 3
