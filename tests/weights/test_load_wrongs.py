"""Nine kinds of files that were once opened as another model without a word, through public functions alone.

The libraries wrote the files and the answers of the fixtures; each test fails on the code before they were fixed.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitral
from tests.fixtures.make_processors import FILE, noise
from tests.models.references import reference
from vitral.core.errors import VitralError

PROCESSORS = json.loads(FILE.read_text())
FLOORING = ("clip", "clip_larger", "bit", "deit")  # classes whose crops round down, and that of DeiT, which squashes
USUAL = {  # of all four, which their files omit
    "do_center_crop": True,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
TOLERANCE = 1e-5


def write(name: str, folder: Path, config: bool = True) -> dict[str, Tensor]:
    """The file of a fixture in a new folder, and the library's answers."""
    found = reference(name)
    folder.mkdir()
    save_file(found.weights, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(found.config))
    return found.answers


def error(model: torch.nn.Module, answers: dict[str, Tensor], other: str) -> float:
    """The largest difference of the outputs at two image sizes; `other` is the ending of the second."""
    differences = []
    with torch.no_grad():
        for size in ("", other):
            name = next(name for name in ("logits", "pooled", "output") if f"{name}{size}" in answers)
            differences.append(model(answers[f"images{size}"].float()) - answers[f"{name}{size}"])
    return max(float(difference.abs().max()) for difference in differences)


@pytest.mark.parametrize("name", ["timm_rpn", "hf_dinov3_gated", "timm_prefix"])
def test_norms_after_the_branch_gates_of_gelu_and_pools_with_prefix_answer_as_the_library(
    tmp_path: Path, name: str
) -> None:
    answers = write(name, tmp_path / "a")
    assert error(vitral.load(tmp_path / "a").model, answers, "_large") < TOLERANCE


@pytest.mark.parametrize(
    ("name", "home", "away", "image_size"),
    [("timm_deit", "timm", "huggingface", 48), ("hf_deit_distilled", "huggingface", "timm", 32)],
)
def test_the_two_heads_of_deit_come_back_from_another_library(
    tmp_path: Path, name: str, home: str, away: str, image_size: int
) -> None:
    write(name, tmp_path / "a")
    vitral.convert(tmp_path / "a", tmp_path / "b", to=away, image_size=image_size)
    vitral.convert(tmp_path / "b", tmp_path / "c", to=home)
    before, after = reference(name).weights, load_file(tmp_path / "c" / "model.safetensors")
    heads = [key for key in before if key.startswith(("head", "cls_classifier", "distillation_classifier"))]
    assert len(heads) == 4
    assert all(torch.equal(before[key], after[key]) for key in heads)


@pytest.mark.parametrize("names", [("model", "model_ema"), ("state_dict", "state_dict_ema")])
def test_of_two_sets_of_weights_none_is_taken_in_silence(tmp_path: Path, names: tuple[str, str]) -> None:
    weights = reference("hf_vit").weights
    averaged = {key: tensor + 1 for key, tensor in weights.items()}
    torch.save({names[0]: weights, names[1]: averaged}, tmp_path / "run.pt")
    with pytest.raises(VitralError, match=names[1]) as caught:
        vitral.load(tmp_path / "run.pt", allow_pickle=True)
    assert "--weights-key" in str(caught.value)


def vit_weights(width: int = 36, positions: int = 17, classes: int = 5) -> dict[str, Tensor]:
    """The tensors of a plain ViT of timm, by their names."""
    shapes = {"patch_embed.proj.weight": (width, 3, 16, 16), "patch_embed.proj.bias": (width,)}
    shapes |= {"cls_token": (1, 1, width), "pos_embed": (1, positions, width), "head.bias": (classes,)}
    shapes |= {"head.weight": (classes, width), "norm.weight": (width,), "norm.bias": (width,)}
    for part, rows, columns in (("attn.qkv", 3, 1), ("attn.proj", 1, 1), ("mlp.fc1", 4, 1), ("mlp.fc2", 1, 4)):
        shapes |= {f"blocks.0.{part}.weight": (rows * width, columns * width), f"blocks.0.{part}.bias": (rows * width,)}
    shapes |= {f"blocks.0.norm{norm}.{part}": (width,) for norm in (1, 2) for part in ("weight", "bias")}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(("positions", "stated"), [(197, "pool=cls"), (197, "3 heads"), (17, "4x4")])
def test_what_the_tensors_of_a_bare_file_do_not_show_is_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, positions: int, stated: str
) -> None:
    """The pool, the heads of a width of 192, a grid that may be 2x8 too."""
    save_file(vit_weights(192, positions), tmp_path / "vit.safetensors")
    caplog.set_level("INFO", "vitral")
    vitral.load(tmp_path / "vit.safetensors")
    assert any(stated in line for line in caplog.messages if line.startswith("assumed"))


def test_a_grid_that_is_no_square_is_asked_for(tmp_path: Path) -> None:
    """3x5 and a class token are 16 positions, which are no 4x4."""
    save_file(vit_weights(192, 16), tmp_path / "vit.safetensors")
    with pytest.raises(VitralError, match="image_size=HEIGHTxWIDTH"):
        vitral.load(tmp_path / "vit.safetensors")


def test_positions_of_vit_pytorch_are_sliced_for_shorter_sequences(tmp_path: Path) -> None:
    answers = write("layouts/vit_pytorch", tmp_path / "a", config=False)
    model = vitral.load(tmp_path / "a", settings={"mixer.heads": 2}).model
    assert answers["images_other"].shape[-2:] == (12, 16)  # of 20x20
    assert error(model, answers, "_other") < TOLERANCE


@pytest.mark.parametrize("name", FLOORING)
def test_the_pixels_of_a_bundle_are_those_of_its_processor(tmp_path: Path, name: str) -> None:
    write("hf_vit", tmp_path / "a")
    made = PROCESSORS["processors"][name]
    fields = USUAL | made["fields"]
    (tmp_path / "a" / "preprocessor_config.json").write_text(json.dumps(fields))
    transform = vitral.load(tmp_path / "a").bundle.transform
    for size, kept in zip(PROCESSORS["sizes"], made["pixels"], strict=True):
        found = transform(Image.fromarray(noise(tuple(size))))  # (3, H, W)
        got = np.array([found[:, row, column].tolist() for row, column in PROCESSORS["kept"]])
        assert np.abs(got - np.array(kept)).max() < 1e-4, size


def test_dropout_of_a_config_is_carried_into_the_bundle(tmp_path: Path) -> None:
    write("hf_vit", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    rates = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | rates))
    document = json.dumps(vitral.load(tmp_path / "a").bundle.model.to_json())
    assert "0.3" in document
    assert "0.2" in document
