"""Model cards: what they say, and that what they say works."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.models.variants import VARIANTS, small
from tests.weights.bundles import TINY, bundle_of, tensors_of
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing
from vitral.models import LinearHead, NoHead, Resnet, Vit, model_config
from vitral.weights.bundle import Bundle, write_bundle
from vitral.weights.card import CardFacts, Result, TrainingFacts, architecture, format_duration, render_card
from vitral.weights.create import create_model

TRAINED = TrainingFacts(
    data="my_photos",
    images={"train": 1200, "val": 300},
    fingerprint="ab12",
    recipe=("recipe small_data", "AdamW, rate 0.001"),
    steps=12_345,
    seconds=3 * 3600 + 25 * 60,
)
RESULTS = (
    Result("accuracy", 0.9133, 0.876, 0.9423, "val", 300, chosen=True),
    Result("accuracy", 0.9, 0.85, 0.94, "test", 1_000, chosen=False),
)
FACTS = CardFacts("my_photos [2]", TRAINED, RESULTS)


def section(text: str, title: str) -> str:
    """What stands under a heading."""
    return text.split(f"\n## {title}\n\n")[1].split("\n\n## ", maxsplit=1)[0].strip()


def test_the_card_says_what_a_colleague_would_ask() -> None:
    text = render_card(bundle_of(), FACTS)
    assert "\n# my\\_photos \\[2\\]\n" in text
    assert f"{sum(weight.numel() for weight in TINY.build().parameters()):,} parameters" in text
    assert "It classifies images into 4 classes." in text
    assert section(text, "Classes").endswith("config.json`: cat, dog, Ünlü, a\\|b.")
    assert section(text, "Data").startswith("my\\_photos; images: 1,200 for train, 300 for val. Fingerprint")
    assert "`ab12`" in section(text, "Data")
    assert section(text, "Training") == "- recipe small\\_data\n- AdamW, rate 0.001\n- 12,345 steps in 3 h 25 min"
    assert section(text, "Results").splitlines()[2:] == [
        "| accuracy | 91.33% | 87.60% to 94.23% | 300 for val |",
        "| accuracy | 90.00% | 85.00% to 94.00% | 1,000 for test |",
    ]
    assert "- The images for val also selected the best weights" in section(text, "Limits")
    assert section(text, "License").startswith("Not stated.")


def test_the_header_is_what_the_hub_reads() -> None:
    header, _, _ = render_card(bundle_of(), FACTS).removeprefix("---\n").partition("\n---\n")
    assert header.splitlines() == [
        "library_name: vitral",
        "pipeline_tag: image-classification",
        *("tags:", "- vision-transformer", "- vitral"),
        *("metrics:", '- "accuracy"'),
    ]


def test_a_model_without_figures_or_classes_claims_none() -> None:
    text = render_card(bundle_of(small(head=NoHead())), FACTS._replace(results=()))
    assert section(text, "Results") == "Not measured."
    assert "## Classes" not in text
    assert "metrics:" not in text
    assert "selected the best" not in text
    assert "pipeline_tag: image-feature-extraction" in text
    assert "It was pre-trained on masked patches" in text
    assert "always predicts" not in text


def test_of_many_classes_the_first_hundred_are_named() -> None:
    names = tuple(f"c{number}" for number in range(1_234))
    text = section(render_card(bundle_of(small(head=LinearHead(num_classes=1_234)), classes=names), FACTS), "Classes")
    assert text.endswith(", c98, c99, and 1,134 more.")


@pytest.mark.parametrize("bundle", [bundle_of(), bundle_of(small(head=NoHead()))], ids=["classify", "masked"])
def test_the_lines_of_the_card_run_as_they_stand(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = render_card(bundle, FACTS)
    write_bundle(tmp_path / "b", bundle, tensors_of(bundle.model), text)
    Image.new("RGB", (60, 50), "red").save(tmp_path / "photo.jpg")
    found = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert found
    monkeypatch.chdir(tmp_path)
    exec(found[1].replace("PATH/TO/THIS/FOLDER", "b"), {})
    expected = {f"{name}\n" for name in bundle.classes} or {"torch.Size([1, 24, 32])\n"}
    assert capsys.readouterr().out in expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Ti/16", "12 layers of width 192, 3 heads, 14x14 patches of 16x16 pixels, for 224x224 images"),
        (
            "R50+B/16",
            "12 layers of width 768, 12 heads, "
            "14x14 patches of 1x1 positions of a ResNet feature map, for 224x224 images",
        ),
        ("R50x1", "A ResNet (BiT): stages of 3, 4, 6, 3 units, root of width 64, for 224x224 images"),
    ],
)
def test_the_architecture_is_told_in_a_line(name: str, words: str) -> None:
    assert architecture(model_config(name)).endswith(words)


def test_a_large_model_is_counted_without_being_built() -> None:
    model = model_config("Ti/16", settings={"head.num_classes": 4})
    count = sum(weight.numel() for weight in create_model(model).parameters())
    assert f"{count:,} parameters" in render_card(bundle_of(model), FACTS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_every_kind_of_model_has_a_card(config: Vit | Resnet) -> None:
    text = render_card(bundle_of(config), FACTS)
    assert str(config.image_size) in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "The model takes the whole image, resized to 32x48 (bilinear), in red,"),
        ({}, "with mean 0.5 and std 0.5."),
        ({"crop": CenterCrop(filter="bicubic")}, "a center crop (87.5% of the shorter side), resized to"),
        ({"normalize": IMAGENET}, "with mean 0.485, 0.456, 0.406 and std 0.229, 0.224, 0.225."),
    ],
)
def test_preprocessing_is_told_in_words(fields: dict[str, Any], words: str) -> None:
    text = render_card(bundle_of(preprocessing=Preprocessing(image_size=Size(32, 48), **fields)), FACTS)
    assert words in section(text, "Preprocessing")


def test_gray_images_are_told() -> None:
    gray = Preprocessing(image_size=Size(32, 48), decoding=Decoding(channels=1))
    assert "in gray." in render_card(bundle_of(small(channels=1), preprocessing=gray), FACTS)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (12.4, "12 s"), (60, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_a_time_is_told_in_two_units(seconds: float, words: str) -> None:
    text = render_card(bundle_of(), FACTS._replace(trained=TRAINED._replace(seconds=seconds)))
    assert text.count(f"steps in {words}\n") == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"), (0.4, "0 s"), (42.4, "42 s"), (59.6, "1 min"), (724, "12 min 4 s"), (3600, "1 h"),
        (12_059, "3 h 20 min"), (190_800, "2 d 5 h"),
    ],
)  # fmt: skip
def test_a_duration_has_the_two_units_that_matter(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown
