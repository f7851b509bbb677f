"""Every variant keeps the promises of a model."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from vitral.core.config import Size
from vitral.models import NoHead, Patches, ProjectionHead, Resnet, TokenMlp, Vit
from vitral.models.base import raise_mismatches

EVERY = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())


def images(config: Vit | Resnet, batch: int = 2, size: Size | None = None) -> Tensor:
    return torch.rand(batch, config.channels, *(size or config.image_size)) * 2 - 1


def awake(config: Vit | Resnet) -> torch.nn.Module:
    """A model in eval mode whose every parameter has something to say, the zero ones too."""
    model = config.build()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    return model.eval()


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@EVERY
def test_a_batch_becomes_features_then_a_vector_then_an_answer(config: Vit | Resnet) -> None:
    model = config.build()
    features = model.forward_features(images(config))
    layout = config.layout(config.image_size)
    assert features.cls.shape[1] == layout.cls
    assert features.registers.shape[1] == layout.registers
    assert features.patches.shape[1] == layout.grid.cells()
    assert features.grid == layout.grid
    width = features.patches.shape[2] if isinstance(config, Resnet) else config.pool.out_width(config.width)
    assert model.forward_pooled(images(config)).shape == (2, width)
    head = config.head
    answers = head.out_width(width) if isinstance(head, NoHead) else head.num_classes
    assert model(images(config)).shape == (2, answers)


@EVERY
def test_a_config_survives_json(config: Vit | Resnet) -> None:
    assert type(config).from_json(config.to_json()) == config


@pytest.mark.sampled(6)
@EVERY
def test_an_image_answers_the_same_in_any_company(config: Vit | Resnet) -> None:
    model, batch = awake(config), images(config, 3)
    with torch.no_grad():
        torch.testing.assert_close(model(batch)[1:2], model(batch[1:2]), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(36)
@EVERY
def test_the_compiler_takes_the_whole_graph(config: Vit | Resnet) -> None:
    model, batch = awake(config).train(), images(config)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.manual_seed(0)
    expected = model(batch)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(batch), expected)


@pytest.mark.slow
def test_the_compiler_takes_one_size_after_another() -> None:
    torch._dynamo.reset()
    for config in (small(), small(stem=Patches(patch=Size(4, 4)))):
        model = config.build().eval()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for size in (Size(32, 48), Size(48, 32), Size(64, 64)):
            batch = images(config, size=size)
            torch.testing.assert_close(compiled(batch), model(batch))


@pytest.mark.sampled(36)
@EVERY
def test_the_exported_program_takes_any_batch(config: Vit | Resnet) -> None:
    model = awake(config)
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(model, (images(config),), dynamic_shapes=shapes).module()
    for batch in (1, 5):
        given = images(config, batch)
        torch.testing.assert_close(program(given), model(given), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(18)
@EVERY
def test_eight_images_are_learned_by_heart(config: Vit | Resnet) -> None:
    model, batch, labels = config.build(), images(config, 8), torch.arange(8) % 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    bounded = isinstance(config.head, ProjectionHead) and config.head.activation == "tanh"
    for _ in range(60):
        loss = F.cross_entropy(model(batch) * (10 if bounded else 1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.05:
            break
    assert loss < 0.05


@pytest.mark.sampled(3)
@EVERY
def test_another_grid_is_answered_or_refused_by_name(config: Vit | Resnet) -> None:
    model, other = config.build().eval(), images(config, size=Size(48, 32))
    if isinstance(config, Vit) and isinstance(config.mixer, TokenMlp):
        with raises("config.size_mismatch", "image", "4x6", "6x4"):
            model(other)
    else:
        features = model.forward_features(other)
        assert features.grid == config.layout(Size(48, 32)).grid
        assert model(other).isfinite().all()


@pytest.mark.sampled(4)
@EVERY
def test_weights_go_out_and_come_back(config: Vit | Resnet) -> None:
    model, batch = awake(config), images(config)
    again = config.build_empty()
    again.load_weights(model.state_dict())
    torch.testing.assert_close(again.eval()(batch), model(batch), rtol=0, atol=0)


@pytest.mark.sampled(4)
@EVERY
def test_every_parameter_learns(config: Vit | Resnet) -> None:
    model = awake(config).train()
    model(images(config)).square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())  # as DDP wants it
    asleep = {name for name, gradient in gradients.items() if gradient is not None and not gradient.any()}
    # The class token has no place, so where it alone is read, the offsets among patches of the last layer are idle.
    assert {name for name in asleep if not name.startswith("blocks.1.mixer.heads.relation.")} == set()


def test_weights_that_do_not_fit_are_all_named() -> None:
    model = small().build()
    weights = model.state_dict()
    del weights["norm.weight"]
    weights["norm.scale"] = torch.ones(32)
    weights["head.linear.bias"] = torch.ones(5)
    weights["prefix.tokens"] = torch.zeros(1, 32, dtype=torch.int64)
    with raises("weights.missing_tensor", "norm.weight", "norm.scale") as caught:
        model.load_weights(weights)
    for found in ("head.linear.bias", (5,), (4,), "prefix.tokens", torch.int64):
        assert str(found) in caught.value.message
    assert model.state_dict()["norm.weight"].equal(torch.ones(32))


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        ({"norm.scale": torch.ones(32)}, "weights.unexpected_tensor", ("norm.scale",)),
        ({"head.linear.bias": torch.ones(5)}, "weights.shape_mismatch", ("head.linear.bias", (5,), (4,))),
        ({"norm.bias": torch.zeros(32, dtype=torch.int64)}, "weights.wrong_type", ("norm.bias", torch.int64)),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_its_fault(
    changed: dict[str, Tensor], code: str, values: tuple[object, ...]
) -> None:
    model = small().build()
    with raises(code, "weights", *values):
        model.load_weights(model.state_dict() | changed)


def test_faults_are_counted_beyond_the_fifth_and_may_be_without_a_code_of_their_own() -> None:
    raise_mismatches([], "model.safetensors", "")
    with raises("weights.mismatch", "model.safetensors", "depth 4", "and 2 more") as caught:
        raise_mismatches([f"depth {number}" for number in range(7)], "model.safetensors", "")
    assert "depth 5" not in caught.value.message


def test_weights_of_a_run_that_diverged_are_refused() -> None:
    model = small().build()
    weights = model.state_dict() | {"prefix.tokens": torch.full((1, 32), float("nan"))}
    with raises("weights.not_finite", "prefix.tokens", "32 of 32"):
        model.load_weights(weights)


def test_infinities_that_cancel_are_found_and_large_values_are_welcome() -> None:
    model, infinity = small().build(), float("inf")
    bad = torch.tensor([infinity, -infinity, *[0.0] * 30])
    with raises("weights.not_finite", "norm.bias", "2 of 32"):
        model.load_weights(model.state_dict() | {"norm.bias": bad})
    model.load_weights(model.state_dict() | {"norm.bias": torch.full((32,), 3e38)})


def test_loaded_weights_are_a_copy_unless_the_model_had_none() -> None:
    giver, taker, frame = small().build(), small().build(), small().build_empty()
    taker.load_weights(giver.state_dict())
    frame.load_weights(giver.state_dict())
    with torch.no_grad():
        giver.norm.get_parameter("weight").add_(1)
    assert taker.norm.get_parameter("weight").equal(torch.ones(32))
    assert frame.norm.get_parameter("weight").equal(torch.full((32,), 2.0))


def test_what_is_no_batch_of_images_is_refused() -> None:
    model = small().build()
    with raises("config.shape_mismatch", "images", (3, 32, 48), "images[None]"):
        model(torch.zeros(3, 32, 48))
    with raises("config.shape_mismatch", "images", "(H, W, C)", "images.permute(2, 0, 1)[None]"):
        model(torch.zeros(32, 48, 3))
    with raises("config.shape_mismatch", "images", (2, 32, 48, 3), "(B, H, W, C)", "images.permute(0, 3, 1, 2)"):
        model(torch.zeros(2, 32, 48, 3))
    with raises("config.wrong_type", "images", "list", "torch.stack(images)"):
        model([torch.zeros(3, 32, 48)])
    with raises("config.wrong_type", "images", "ndarray", "torch.from_numpy"):
        model(torch.zeros(2, 3, 32, 48).numpy())
    with raises("config.wrong_type", "images", "str", "vitral.Predictor"):
        model("cat.jpg")
    with raises("config.channel_mismatch", "images", 3, "channels=1"):
        model(torch.zeros(2, 1, 32, 48))
    with raises("config.wrong_type", "images", torch.uint8):
        model(torch.zeros(2, 3, 32, 48, dtype=torch.uint8))
    with raises("config.indivisible", "image", "30x48", "8x8", "32x48"):
        model(torch.zeros(2, 3, 30, 48))
