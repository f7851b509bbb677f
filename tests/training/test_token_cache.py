"""Steps that start from the tokens of frozen layers take what the whole model would."""

from pathlib import Path

import pytest
import torch

import vitral
from tests.runs.small import photos
from vitral.core.config import Size
from vitral.data.datasets.source import open_data
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Sequential, Shuffled
from vitral.data.transforms.crop import RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.vit import LastBlocks, VisionTransformer
from vitral.training.loop import MicrobatchConfig
from vitral.training.token_cache import TokenCache, View

CONFIG = MicrobatchConfig(CENTERED, 2, torch.device("cpu"))


def vit(*pairs: tuple[str, object]) -> VisionTransformer:
    torch.manual_seed(0)
    small = {"image_size": 16, "stem.patch": 8, "width": 16, "depth": 3, "mixer.heads": 2, "tokens.dropout": 0.5}
    model = vitral.create_model("Ti/16", num_classes=2, settings=small | dict(pairs))
    assert isinstance(model, VisionTransformer)
    torch.nn.init.normal_(model.head.get_parameter("linear.weight"))
    return model.eval()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("pairs", [(), (("pool", "mean"),), (("position", "rope2d"),), (("position.where", "layers"),)])
def test_the_last_layers_give_the_logits_of_the_whole_model(count: int, pairs: tuple[tuple[str, object], ...]) -> None:
    model, images = vit(*pairs), torch.randn(5, 3, 16, 16)
    last = LastBlocks(model, count)
    with torch.no_grad():
        assert torch.equal(last(last.forward_tokens(images)), model(images))


@pytest.fixture
def cache(tmp_path: Path) -> TokenCache:
    samples = open_data(str(photos(tmp_path / "photos")))
    pipelines = [ImagePipeline(Size(16, 16), Decoding(), crop) for crop in (Resize(), RandomResizedCrop())]
    plain, random = (Loader.of(samples, "train", each, Sequential(), 7, seed=3) for each in pipelines)
    return TokenCache(LastBlocks(vit().train(), 1), [View(plain, 0), View(random, 1)], CONFIG, lambda rows: rows)


def test_a_view_is_that_of_its_loader_and_is_computed_once(cache: TokenCache) -> None:
    loader = cache.views[1].loader
    images = torch.cat([batch.images for batch in loader.epoch(1)])
    with torch.no_grad():
        truth = LastBlocks(vit(), 1).forward_tokens(CENTERED.apply(images))
    torch.testing.assert_close(cache.tokens(1), truth)
    assert cache.tokens(1) is cache.tokens(1)
    assert not torch.equal(cache.tokens(0), cache.tokens(1))
    assert cache.model.training  # as it was


def test_every_epoch_has_another_view_in_the_order_of_the_plan(cache: TokenCache) -> None:
    plan = SamplingPlan(cache.labels.numpy(), Shuffled(), 6, 0)
    steps = plan.steps_per_epoch
    for step, (one, two) in enumerate(cache.batches(plan, 0, 3 * steps)):
        indices = torch.from_numpy(plan.indices(step).copy())
        assert torch.equal(torch.cat([one.images, two.images]), cache.tokens(step // steps % 2)[indices])
        assert torch.equal(torch.cat([one.labels, two.labels]), cache.labels[indices])
        assert (one.weight, two.weight) == (0.5, 0.5)
