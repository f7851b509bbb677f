"""Other channels and some of the layers."""

import pytest
import torch

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from tests.weights.bundles import loaded, tensors_of
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models import Axial, Hybrid, Learned1d, Resnet, Vit
from vitral.weights.adapt import adapt, adapt_channels, adapt_kernel, load_pretrained, select_layers

STEMS: dict[str, Vit | Resnet] = {
    "patches": small(),
    "hybrid": small(stem=Hybrid(layers=(1, 1), root=32)),
    "convolutions": VARIANTS["stem-convolutions"],
    "overlapping": VARIANTS["stem-overlapping_patches"],
    "resnet": VARIANTS["resnet"],
}


@pytest.mark.parametrize("name", ["patches", "convolutions", "overlapping"])
def test_a_gray_image_is_answered_as_three_equal_channels_were(name: str) -> None:
    config = STEMS[name]
    source = loaded(config)
    gray = torch.randn(2, 1, *config.image_size)
    found = adapt(source, channels=1)
    with torch.no_grad():
        expected = source.model(gray.expand(-1, 3, -1, -1))
        assert torch.allclose(found.loaded.model(gray), expected, atol=1e-4)
    assert found.messages == ("the stem's weights for 3 channels summed for 1",)
    assert found.loaded.bundle.preprocessing.decoding.channels == 1


@pytest.mark.parametrize("config", STEMS.values(), ids=STEMS)
@pytest.mark.parametrize("channels", [1, 2, 4, 6])
def test_any_stem_takes_any_number_of_channels(config: Vit | Resnet, channels: int) -> None:
    found = adapt(loaded(config), channels=channels).loaded
    assert found.model(torch.zeros(1, channels, *config.image_size)).shape == (1, 4)


def test_repeated_channels_let_as_much_through() -> None:
    kernel = torch.randn(5, 3, 4, 4)
    six = adapt_kernel(kernel, 6)
    assert torch.allclose(six.sum(dim=1), kernel.sum(dim=1), atol=1e-6)
    assert torch.equal(six[:, 3:], six[:, :3])
    assert torch.equal(adapt_kernel(kernel, 1)[:, 0], kernel.sum(dim=1))


@pytest.mark.parametrize("config", [VARIANTS["patch-norms"], VARIANTS["stem-shifted_patches"]])
def test_a_norm_over_all_channels_takes_no_others(config: Vit) -> None:
    with raises("config.unsupported", "channels"):
        adapt_channels(tensors_of(config), config, 1)


def test_chosen_layers_stand_in_the_chosen_order() -> None:
    config = small(depth=4, position=Learned1d(where="layers"))
    weights = tensors_of(config)
    found = select_layers(weights, config, (3, 0))
    assert torch.equal(found["blocks.0.mlp.expand.weight"], weights["blocks.3.mlp.expand.weight"])
    assert torch.equal(found["blocks.1.mlp.expand.weight"], weights["blocks.0.mlp.expand.weight"])
    assert torch.equal(found["position.table"], weights["position.table"][[3, 0]])
    assert not any(name.startswith(("blocks.2.", "blocks.3.")) for name in found)
    made = adapt(loaded(config), layers=(3, 0))
    assert made.messages == ("layers 3, 0 of 4 kept",)
    assert made.loaded.model(torch.zeros(1, 3, *config.image_size)).shape == (1, 4)


@pytest.mark.parametrize("layers", [(0, 0), (4,), (-1,)])
def test_layers_that_are_not_there_are_refused(layers: tuple[int, ...]) -> None:
    with raises("config.out_of_range", "layers", 3, layers[-1]):
        select_layers({}, small(depth=4), layers)


def test_a_shallower_model_starts_from_the_first_layers() -> None:
    model, source = small(depth=1).build(), loaded(small(depth=2))
    told = load_pretrained(model, source)
    assert "the first 1 of 2 layers kept" in told
    own = model.state_dict()
    assert torch.equal(own["blocks.0.mixer.project.weight"], source.model.state_dict()["blocks.0.mixer.project.weight"])


def test_new_classes_get_a_head_of_zeros_and_their_names() -> None:
    made = adapt(loaded(), classes=("bee", "ant", "fly"))
    assert made.loaded.bundle.classes == ("bee", "ant", "fly")
    assert made.messages == ("head of 4 classes dropped", "a new one of 3 starts at zero")
    assert not made.loaded.model(torch.randn(2, 3, 32, 48)).any()


def test_images_are_seen_in_the_size_they_were_unless_another_is_asked_for() -> None:
    seen = Preprocessing(image_size=Size(16, 24))  # as DINOv2's are smaller than what its positions were made for
    source = loaded(small(depth=2), preprocessing=seen)
    assert adapt(source, layers=(0,)).loaded.bundle.preprocessing.image_size == (16, 24)
    assert adapt(source, image_size=64).loaded.bundle.preprocessing.image_size == (64, 64)


def test_a_resnet_has_no_layers_to_choose_from() -> None:
    with raises("config.unsupported", "layers", "ResNet"):
        adapt(loaded(VARIANTS["resnet"]), layers=(0,))


def test_a_layer_is_not_put_where_it_would_see_other_patches() -> None:
    source = loaded(small(depth=6, mixer=Axial(heads=2)))
    with raises("config.conflict", "layers", "layer 1", "layer 0", "axial"):
        adapt(source, layers=(1, 2))
    made, model = adapt(source, layers=(2, 1)).loaded.model, source.bundle.model
    assert isinstance(model, Vit)
    layout = model.layout(model.image_size)
    tokens = torch.randn(1, layout.length(), model.width)
    for new, old in enumerate((2, 1)):
        one, other = (each.get_submodule(f"blocks.{layer}") for each, layer in ((made, new), (source.model, old)))
        assert torch.equal(one(tokens, layout, layout.length()), other(tokens, layout, layout.length()))
