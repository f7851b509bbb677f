"""Our layer with torch's weights gives torch's answers; for whole models see tests/weights/formats."""

import pytest
import torch

from tests.models import references as ref
from vitral.core.config import Size
from vitral.models import Attention, Mlp, NoHead, NoPosition, Patches, PostNorm, PreNorm, Vit
from vitral.models.base import Grid, Layout
from vitral.models.vit import build_blocks

TOLERANCE = 1e-5


@pytest.mark.parametrize(("name", "order"), [("torch_encoder_pre", PreNorm()), ("torch_encoder_post", PostNorm())])
def test_encoder_layer_of_torch_agrees(name: str, order: PreNorm | PostNorm) -> None:
    found = ref.reference(name)
    config = Vit(
        image_size=Size(32, 32),
        width=36,
        depth=2,
        stem=Patches(patch=Size(8, 8)),
        position=NoPosition(),
        block=order,
        mixer=Attention(heads=3),
        mlp=Mlp(ratio=80 / 36, activation="gelu"),
        head=NoHead(),
        eps=1e-5,
    )
    block = next(build_blocks(config, config.context())).eval()
    block.load_state_dict(ref.renamed(found.weights, ref.TORCH))
    layout = Layout(cls=1, registers=0, grid=Grid(2, 3))
    with torch.no_grad():
        tokens = block(found.answers["tokens_in"], layout, layout.length())
    assert tokens.shape == found.answers["tokens_out"].shape
    assert float((tokens - found.answers["tokens_out"]).abs().max()) <= TOLERANCE
