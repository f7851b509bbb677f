"""The description against torch's counters, its allocator, and closed forms."""

from collections.abc import Callable
from itertools import accumulate
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from tests.weights.bundles import bundle_of, tensors_of
from vitral.core.config import Size, parse_settings
from vitral.explanation.walkthrough.describe import Description, Part, count_parts, describe
from vitral.explanation.walkthrough.equations import equations
from vitral.models import (
    Attention,
    GradientCheckpointing,
    LayerScale,
    MeanPool,
    Model,
    PreNorm,
    Resnet,
    Tokens,
    Vit,
    model_config,
)
from vitral.weights.bundle import write_bundle


@pytest.fixture(scope="module")
def base() -> Description:
    return describe(model_config("B/16"))


@pytest.fixture(scope="module")
def tiny() -> Description:
    return describe(small(depth=4))


def parts(config: Vit | Resnet) -> tuple[tuple[Part, ...], Part]:
    """The rows and the whole, without the rest of a description."""
    with FakeTensorMode():
        return count_parts(config.build_empty("cpu"), config)


def test_b_16_has_the_parameters_of_the_paper_and_the_multiply_adds_that_torch_counts(base: Description) -> None:
    assert base.parameters == 86_567_656
    model, image = Vit().build_empty(), torch.empty(1, 3, 224, 224, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert base.multiply_adds == counter.get_total_flops() // 2


def test_weights_are_described_as_their_config_is_and_a_wrong_path_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", bundle_of(), tensors_of(), "")
    found = describe(tmp_path / "b")
    assert found == describe(bundle_of().model).model_copy(update={"files": "verified"})
    with raises("config.unknown_name", "no such file or folder"):
        describe(tmp_path / "runs/nosuch")


def block_multiply_adds(n: int, d: int, hidden: int) -> int:
    """Queries, keys and values; their two products; the projection; the MLP."""
    return n * d * 3 * d + 2 * n * n * d + n * d * d + 2 * n * d * hidden


def test_the_multiply_adds_of_b_16_are_a_closed_form(base: Description) -> None:
    n, d, hidden, layers = 197, 768, 3072, 12
    stem, head, block = 196 * (16 * 16 * 3) * d, d * 1000, block_multiply_adds(n, d, hidden)
    class_row = d * d + n * d * 2 * d + 2 * n * d + d * d + 2 * d * hidden  # its q; k and v of all; then one row
    assert base.multiply_adds == stem + (layers - 1) * block + class_row + head
    assert base.multiply_adds_in_full == stem + layers * block + head
    assert round(base.multiply_adds_in_full / 1e9, 2) == 17.56  # torchvision says so of its vit_b_16


def test_the_rows_of_b_16_name_every_shape(base: Description) -> None:
    assert base.tokens == (1, 0, 14, 14)
    assert [(part.level, part.name, part.shape) for part in base.parts] == [
        (0, "stem", (196, 768)),
        (1, "project", (196, 768)),
        (0, "class token", (197, 768)),
        (0, "position", (197, 768)),
        (0, "block 1", (197, 768)),
        (1, "mixer norm", (197, 768)),
        (1, "mixer", (197, 768)),
        (1, "mlp norm", (197, 768)),
        (1, "mlp", (197, 768)),
        (0, "blocks 2 to 11", (197, 768)),
        (0, "block 12", (1, 768)),
        (0, "norm", (1, 768)),
        (0, "pool", (768,)),
        (0, "head", (1000,)),
    ]


@pytest.mark.parametrize(
    ("depth", "names"),
    [
        (1, ["block 1"]),
        (2, ["block 1", "block 2"]),
        (3, ["block 1", "block 2", "block 3"]),
        (5, ["block 1", "blocks 2 to 4", "block 5"]),
    ],
)
def test_every_block_is_in_one_row(depth: int, names: list[str]) -> None:
    rows = [row for row in parts(small(depth=depth))[0] if row.name.startswith("block")]
    assert [row.name for row in rows] == names
    assert sum(row.parameters for row in rows) == depth * rows[0].parameters


SUMMED = {
    **{
        name: VARIANTS[name]
        for name in (
            "stem-hybrid",
            "stem-convolutions",
            "stem-shifted_patches",
            "block-post",
            "mixer-axial",
            "mixer-pooling",
            "position-relative2d",
            "resnet",
        )
    },
    **{name: VARIANTS[name] for name in ("pool-attention", "learned1d-layers", "memory-recompute", "registers")},
    "dropout and scale": small(
        tokens=Tokens(dropout=0.1), mixer=Attention(heads=2, dropout=0.1), block=PreNorm(scale=LayerScale())
    ),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", SUMMED)
def test_rows_add_up_to_the_model(name: str) -> None:
    config = SUMMED[name]
    rows, whole = parts(config)
    assert whole.parameters == sum(weight.numel() for weight in config.build_empty().parameters())
    assert sum(row.parameters for row in rows if row.level == 0) == whole.parameters
    assert sum(row.multiply_adds for row in rows if row.level == 0) == whole.multiply_adds
    assert sum(row.kept for row in rows if row.level == 0) == whole.kept
    for index, row in enumerate(rows):
        following = [later.level for later in rows[index + 1 :]]
        inner = rows[index + 1 : index + 1 + (following.index(0) if 0 in following else len(following))]
        if inner and row.level == 0:
            assert sum(part.parameters for part in inner) == row.parameters
            assert sum(part.multiply_adds for part in inner) == row.multiply_adds


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SUMMED)
def test_what_training_keeps_is_to_the_byte_what_autograd_saves(name: str) -> None:
    config = SUMMED[name]
    model, images = config.build(), torch.rand(1, config.channels, *config.image_size)
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        save(model(images))
    for known in (images, *model.parameters()):
        saved.pop(known.untyped_storage().data_ptr(), None)
    assert parts(config)[1].kept == sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def allocated(use: Callable[[], object]) -> int:
    """The most bytes that torch's allocator gave out at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        use()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def measured(model: Model, images: Tensor) -> tuple[int, int]:
    """Bytes of inference and of training by the allocator, with AdamW's two moments, weights and images added."""
    weights = 4 * sum(weight.numel() for weight in model.parameters())
    inference = allocated(lambda: torch.no_grad()(model)(images))
    training = allocated(lambda: model(images).sum().backward())
    return weights + images.nbytes + inference, 3 * weights + images.nbytes + training


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["stem-patches", "pool-mean", "mixer-pooling", "mlp-swiglu", "memory-recompute"])
def test_the_memory_that_is_foretold_is_what_the_allocator_gives(name: str) -> None:
    config = VARIANTS[name]
    model = config.build()
    for need in describe(config).needs:
        images = torch.rand(need.batch, config.channels, *config.image_size)
        found = measured(model, images)
        model.zero_grad()
        assert (need.inference, need.training) == pytest.approx(found, rel=0.03)  # a random state, a mask of a byte


def test_a_batch_of_64_needs_64_times_the_activations_and_the_same_weights(base: Description) -> None:
    one, many = base.needs
    weights, pixels = 4 * base.parameters, 4 * prod((3, 224, 224))
    assert (one.batch, many.batch) == (1, 64)
    assert many.inference - weights == 64 * (one.inference - weights)
    least = 3 * weights + 64 * (pixels + base.kept)  # weights, moments, images, and all that is kept at the turn
    block = base.parts[4].kept
    assert least < many.training < least + weights + 64 * block
    assert 4 * weights < one.training < 4 * weights + pixels + base.kept + block


def test_recomputing_keeps_less_and_trains_in_less(tiny: Description) -> None:
    again = describe(small(depth=4, memory=GradientCheckpointing()))
    assert again.kept < tiny.kept / 3
    assert again.needs[1].training < tiny.needs[1].training
    assert again.needs[1].inference == tiny.needs[1].inference
    assert (again.parameters, again.multiply_adds) == (tiny.parameters, tiny.multiply_adds)


@pytest.mark.parametrize("name", ["registers", "resnet"])
@pytest.mark.sampled(4)
def test_a_description_survives_json(name: str) -> None:
    description = describe(VARIANTS[name])
    assert Description.from_json(description.to_json()) == description
    assert description.config == VARIANTS[name]
    assert description.equations == equations(VARIANTS[name])


def test_a_model_is_described_by_name_and_settings_or_by_config() -> None:
    settings = ("image_size=32", "depth=1", "width=24", "mixer.heads=3")
    by_name, by_config = (
        describe("Ti/16", settings=parse_settings([*settings])),
        describe(model_config("Ti/16", settings=parse_settings([*settings]))),
    )
    assert by_name == by_config == describe(model_config("Ti/16"), settings=parse_settings([*settings]))
    assert (by_name.image, by_name.tokens) == (Size(32, 32), (1, 0, 2, 2))


def test_the_size_of_the_image_counts() -> None:
    narrow, wide = (parts(small(image_size=Size(side, 48), depth=1, pool=MeanPool()))[1] for side in (32, 64))
    more = block_multiply_adds(49, 32, 128) - block_multiply_adds(25, 32, 128)
    assert wide.multiply_adds - narrow.multiply_adds == 24 * 192 * 32 + more
    assert wide.parameters - narrow.parameters == 24 * 32  # more places to learn


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (Tokens(), "class token"),
        (Tokens(registers=2), "class token and registers"),
        (Tokens(cls=False, registers=2), "registers"),
        (Tokens(cls=False), "no tokens but the patches"),
    ],
)
def test_the_row_of_tokens_says_which_there_are(tokens: Tokens, name: str) -> None:
    rows, _ = parts(small(tokens=tokens, pool=MeanPool()))
    assert rows[2].name == name
    assert rows[2].parameters == 32 * (tokens.cls + tokens.registers)


def test_a_residual_network_is_told_stage_by_stage() -> None:
    rows, whole = parts(Resnet(layers=(2, 1), root=32, image_size=Size(32, 48)))
    assert [(row.name, row.level, row.shape) for row in rows] == [
        ("root", 0, (32, 16, 24)),
        ("stage 1", 0, (128, 8, 12)),
        ("stage 2", 0, (256, 4, 6)),
        ("head", 0, (1000,)),
    ]
    assert whole.shape == (1000,)
