from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from tests.data.transforms.oracles import furthest
from tests.data.transforms.scene import gray_scene, scene
from tests.errors import raises
from vitral.core.config import Config, override, union_members
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms import image_ops
from vitral.data.transforms.augment import (
    Augment,
    ColorJitter,
    DrawnAugment,
    Fill,
    Level,
    Noise,
    RandomBlur,
    RandomColorJitter,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
    ThreeAugment,
    draw_erased_box,
)

STRONG = {"color_jitter": {"hue": 0.5}, "random_erasing": {"probability": 1.0}}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(params=union_members(Augment), ids=lambda member: member.__name__)
def augment(request: pytest.FixtureRequest) -> Augment:
    member: type[Config] = request.param
    return member(**STRONG.get(member.model_fields["kind"].default, {}))  # type: ignore[return-value]


@pytest.mark.parametrize("make", [scene, gray_scene, lambda: scene(1, 1), lambda: scene(3, 200)])
def test_the_same_dice_give_the_same_pixels_and_the_input_stays(augment: Augment, make: Callable[[], Pixels]) -> None:
    for seed in range(30):
        pixels = make()
        pixels.flags.writeable = False
        found = augment.apply(pixels, rng(seed))
        assert found.dtype == np.uint8
        assert found.shape == pixels.shape
        assert furthest(augment.apply(pixels, rng(seed)), found) == 0
        assert furthest(pixels, make()) == 0


def test_other_dice_give_other_pixels(augment: Augment) -> None:
    few = 1 if isinstance(augment, RandomGrayscale | RandomSolarize) else 10  # which are applied or not
    assert len({augment.apply(scene(), rng(seed)).tobytes() for seed in range(30)}) > few


def test_nothing_but_the_dice_that_were_handed_in_is_thrown(augment: Augment) -> None:
    expected = augment.apply(scene(), rng(3))
    np.random.seed(1234)
    before = np.random.get_state(legacy=False)["state"]["pos"]
    assert furthest(augment.apply(scene(), rng(3)), expected) == 0
    assert np.random.get_state(legacy=False)["state"]["pos"] == before


def test_a_config_comes_back_from_its_json(augment: Augment) -> None:
    assert type(augment).from_json(augment.to_json()) == augment


def test_five_channels_are_refused_at_once_or_always_work(augment: Augment) -> None:
    pixels = np.zeros((8, 8, 5), dtype=np.uint8)
    if isinstance(augment, RandomErasing):
        assert augment.apply(pixels, rng()).shape == (8, 8, 5)
        return
    for seed in range(20):
        with raises("config.unsupported", "augment", 5):
            augment.apply(pixels, rng(seed))


def test_jitter_makes_every_order_of_its_changes() -> None:
    changes = {"brightness": image_ops.brightness, "contrast": image_ops.contrast, "saturation": image_ops.saturation}
    found = set()
    for seed in range(80):
        jittered = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4).apply(scene(), rng(seed))
        for order in permutations(changes):
            generator, pixels = rng(seed), scene()
            generator.permutation(3)
            for name in order:
                pixels = changes[name](pixels, generator.uniform(0.6, 1.4))
            if furthest(pixels, jittered) == 0:
                found.add(order)
    assert len(found) == 6


@pytest.mark.parametrize(
    ("field", "change", "low", "high"),
    [
        ("brightness", image_ops.brightness, 0.6, 1.4),
        ("contrast", image_ops.contrast, 0.6, 1.4),
        ("saturation", image_ops.saturation, 0.6, 1.4),
        ("hue", image_ops.hue, -0.4, 0.4),
    ],
)
def test_a_jitter_of_one_thing_is_that_change_alone(
    field: str, change: Callable[[Pixels, float], Pixels], low: float, high: float
) -> None:
    still = ColorJitter(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)
    for seed in range(10):
        generator = rng(seed)
        generator.permutation(1)
        found = override(still, [f"{field}=0.4"]).apply(scene(), rng(seed))
        assert furthest(found, change(scene(), generator.uniform(low, high))) == 0
    assert furthest(still.apply(scene(), rng()), scene()) == 0


def test_jitter_beyond_one_never_makes_a_factor_negative() -> None:
    white = np.full((2, 2, 1), 100, dtype=np.uint8)
    jitter = ColorJitter(brightness=2.0, contrast=0.0, saturation=0.0)
    means = [float(jitter.apply(white, rng(seed)).mean()) for seed in range(200)]
    assert min(means) >= 0
    assert np.mean(np.array(means) == 0) < 0.05  # factors from 0 to 3; from -1 on a quarter would be black


def test_three_augment_makes_one_of_three_and_then_a_jitter() -> None:
    jitter = ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.0)
    seen = set()
    for seed in range(30):
        generator = rng(seed)
        choice = int(generator.integers(3))
        seen.add(choice)
        if choice == 0:
            first = image_ops.grayscale(scene())
        elif choice == 1:
            first = image_ops.solarize(scene(), 128)
        else:
            first = image_ops.blur(scene(), generator.uniform(0.1, 2.0))
        assert furthest(ThreeAugment().apply(scene(), rng(seed)), jitter.apply(first, generator)) == 0
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(("height", "width"), [(24, 32), (224, 224), (8, 200), (2, 2)])
def test_an_erased_box_is_inside_and_of_the_stated_area_and_aspect(height: int, width: int) -> None:
    boxes = [draw_erased_box(height, width, rng(seed)) for seed in range(300)]
    for box in boxes:
        assert 0 <= box.top <= box.top + box.height <= height
        assert 0 <= box.left <= box.left + box.width <= width
    if min(height, width) > 20:
        sides = np.array([(box.height, box.width) for box in boxes], dtype=np.float64)
        rounding = 1.5 * (height + width) / (height * width)
        shares = sides.prod(axis=1) / (height * width)
        assert 0.02 - rounding < shares.min() < 0.06
        assert 0.27 < shares.max() < 0.33 + rounding
        aspects = np.log(sides[:, 0] / sides[:, 1])
        assert abs(aspects).max() < np.log(3.3) + 0.4
        assert abs(np.median(aspects)) < 0.2
        assert {int(box.top) for box in boxes} >= {0, 1}


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_erasing_happens_as_often_as_asked(probability: float) -> None:
    erasing = RandomErasing(probability=probability, fill=Level(level=0))
    erased = sum(furthest(erasing.apply(scene(), rng(seed)), scene()) > 0 for seed in range(400))
    assert abs(erased / 400 - probability) < 0.07


def test_erasing_covers_one_box_and_nothing_else() -> None:
    for seed in range(30):
        generator = rng(seed)
        generator.random()
        box = draw_erased_box(24, 32, generator)
        found = RandomErasing(probability=1.0, fill=Level(level=7)).apply(scene(), rng(seed))
        expected = scene()
        expected[box.top : box.top + box.height, box.left : box.left + box.width] = 7
        assert furthest(found, expected) == 0


@pytest.mark.parametrize("fill", union_members(Fill))
def test_a_fill_has_the_shape_asked_for(fill: type[Noise | Level]) -> None:
    drawn = fill().draw((5, 7, 4), rng())
    assert drawn.shape == (5, 7, 4)
    assert drawn.dtype == np.uint8


def test_noise_is_even_over_all_levels() -> None:
    drawn = Noise().draw((200, 200, 3), rng())
    counts = np.bincount(drawn.ravel(), minlength=256)
    assert counts.min() > 0.6 * counts.mean()
    assert counts.max() < 1.4 * counts.mean()


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: ColorJitter(hue=0.6), "hue"),
        (lambda: ColorJitter(brightness=-0.1), "brightness"),
        (lambda: RandomErasing(probability=1.5), "probability"),
        (lambda: Level(level=256), "level"),
    ],
)
def test_settings_beyond_reason_are_refused(make: Callable[[], Config], where: str) -> None:
    with raises("config.out_of_range", where):
        make()


DRAWN = RandomColorJitter(), RandomGrayscale(probability=0.5), RandomSolarize(threshold=90), RandomBlur()


@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: drawn.kind)
def test_a_batch_is_augmented_to_the_bits_of_each_image(drawn: DrawnAugment) -> None:
    for images in (np.stack([scene(9, 11)] * 40), np.stack([gray_scene()] * 40)):
        numbers, batch = rng(5).random((40, drawn.draws)), images.copy()
        drawn.apply_batch(batch, numbers)
        changed = 0
        for row, image in enumerate(images):

            class Given:
                def random(self, count: int) -> np.ndarray:
                    return numbers[row, :count]  # noqa: B023, called at once

            assert furthest(drawn.apply(image, Given()), batch[row]) == 0  # type: ignore[arg-type]
            changed += furthest(image, batch[row]) > 0
        if not isinstance(drawn, RandomGrayscale) or images.shape[-1] == 3:
            share = changed / len(images)
            assert abs(share - drawn.probability) < 0.25


def test_a_random_jitter_is_a_jitter_in_each_of_the_24_orders() -> None:
    jitter = RandomColorJitter(probability=1.0, brightness=0.5, contrast=0.5, saturation=0.5, hue=0.3)
    operations = (image_ops.brightness, image_ops.contrast, image_ops.saturation, image_ops.hue)
    strengths = 0.5 + 0.9, 0.5 + 0.1, 0.5 + 0.7, -0.3 + 0.6 * 0.8
    found = set()
    for order in permutations(range(4)):
        expected = scene()
        for index in order:
            expected = operations[index](expected, strengths[index])
        ranks = np.argsort(order) / 4
        numbers = np.array([*ranks, 0.9, 0.1, 0.7, 0.8])
        assert furthest(jitter.change(scene(), numbers), expected) == 0
        found.add(expected.tobytes())
    assert len(found) > 12


def test_a_strength_of_zero_leaves_its_property_alone() -> None:
    jitter = RandomColorJitter(probability=1.0, brightness=0, contrast=0, saturation=0, hue=0)
    assert furthest(jitter.apply(scene(), rng()), scene()) == 0
