"""The baseline keeps a Vision Transformer's contract and has a ResNet's numbers."""

import pytest
import torch

from vitral.core.config import Size
from vitral.models import Grid, LinearHead, NoHead, Resnet, model_config
from vitral.models.resnet import ResidualNetwork

# Of torchvision's resnet50, 101 and 152 with 1000 classes: BatchNorm there has as many parameters as GroupNorm here.
RESNETS = {"R50x1": 25_557_032, "R101x1": 44_549_160, "R152x1": 60_192_808}
SMALL = Resnet(layers=(1, 1), root=32, image_size=Size(32, 48), head=LinearHead(num_classes=4))


def skeleton(name: str) -> ResidualNetwork:
    config = model_config(name)
    assert isinstance(config, Resnet)
    return config.build_empty()


@pytest.mark.parametrize(("name", "parameters"), RESNETS.items())
def test_a_baseline_has_as_many_parameters_as_the_resnet_it_is(name: str, parameters: int) -> None:
    assert sum(weight.numel() for weight in skeleton(name).parameters()) == parameters


def test_the_default_is_r50x1() -> None:
    assert model_config("R50x1") == Resnet()


@pytest.mark.parametrize("units", ["26", "50", "101", "152", "200"])
@pytest.mark.parametrize("factor", [1, 4])
def test_every_width_of_every_depth_is_built(units: str, factor: int) -> None:
    model = skeleton(f"R{units}x{factor}")
    assert sum(len(list(stage.children())) for stage in model.body.stages.children()) == (int(units) - 2) // 3
    assert model.get_parameter("head.linear.weight").shape == (1000, 2048 * factor)


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_features_have_places_but_no_class_token_and_no_registers(factor: int) -> None:
    model = skeleton(f"R50x{factor}")
    features = model.forward_features(torch.empty(2, 3, 224, 224, device="meta"))
    assert features.cls.shape == (2, 0, 2048 * factor)
    assert features.registers.shape == (2, 0, 2048 * factor)
    assert features.patches.shape == (2, 49, 2048 * factor)
    assert features.grid == Grid(7, 7)


def test_factor_two_doubles_every_channel_but_those_of_the_image_and_the_answer() -> None:
    one, two = (dict(skeleton(name).named_parameters()) for name in ("R50x1", "R50x2"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        expected = [2 * side for side in weight.shape[:2]]
        if name == "body.root.0.weight":
            expected[1] = 3
        if name.startswith("head."):
            expected[0] = 1000
        assert list(two[name].shape[:2]) == expected, name
        assert two[name].shape[2:] == weight.shape[2:]


def test_the_mean_of_the_patches_is_pooled_and_the_head_answers_from_it() -> None:
    model, images = SMALL.build(), torch.randn(2, 3, 32, 48)
    features = model.forward_features(images)
    assert features.patches.shape == (2, 24, 256)
    mean = sum(features.patches[:, place] for place in range(24)) / 24
    torch.testing.assert_close(model.forward_pooled(images), mean)
    with torch.no_grad():
        for weight in model.head.parameters():
            weight.normal_()
    assert model(images).equal(model.head(model.forward_pooled(images)))


def test_patches_are_the_places_of_the_last_map_row_by_row() -> None:
    model, images = SMALL.build(), torch.randn(2, 3, 32, 48)
    found, last_map = model.forward_features(images), model.body(images)  # (2, 256, 4, 6)
    assert found.grid == Grid(4, 6)
    for row in range(4):
        for column in range(6):
            assert found.patches[:, row * 6 + column].equal(last_map[:, :, row, column])


def test_another_size_is_answered_without_any_resampling() -> None:
    model = SMALL.build()
    assert model.forward_features(torch.randn(1, 3, 64, 40)).grid == Grid(8, 5)


def test_without_a_head_the_vector_is_the_answer() -> None:
    model = Resnet(layers=(1,), root=32, head=NoHead()).build()
    images = torch.randn(2, 3, 16, 16)
    assert model(images).equal(model.forward_pooled(images))
    assert model(images).shape == (2, 128)
