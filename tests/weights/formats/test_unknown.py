"""Files that no format reads: the error names what was found, and never blames a file that is whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitral
from tests.errors import raises
from tests.models.references import FOLDER, reference
from tests.weights.formats.files import put
from tests.weights.formats.huggingface.folders import folder
from vitral import cli
from vitral.weights.formats.foreign import ARCHITECTURES, identify
from vitral.weights.formats.format import Checkpoint, Format
from vitral.weights.formats.registry import FORMATS
from vitral.weights.formats.unknown import compare_layout, example_layout

FOREIGN: dict[str, dict[str, list[int]]] = json.loads((FOLDER / "foreign.json").read_text())
# What the error names for each file of the fixture.
FOUND = {
    "swin": "Swin", "swinv2": "Swin", "cait": "CaiT", "xcit": "XCiT", "convnext": "ConvNeXt", "resnet": "ResNet",
    "mobilenet": "MobileNet", "regnet": "RegNet", "vgg": "VGG", "mixer": "Mixer", "pvt": "PVT", "hiera": "Hiera",
    "levit": "LeViT", "twins": "Twins", "crossvit": "CrossViT", "tnt": "TNT", "coat": "CoaT",
    "efficientformer": "EfficientFormer", "densenet": "DenseNet", "samvit": "SAM", "edgenext": "EdgeNeXt", "pit": "PiT",
    "poolformer": "PoolFormer", "navit": "NaViT", "cct": "CCT", "pit_lucidrains": "PiT",
    "bert": "BERT", "roberta": "BERT", "gpt2": "GPT-2", "llama": "language model", "t5": "T5", "whisper": "Whisper",
    "wav2vec2": "wav2vec", "sam": "SAM", "swin_hf": "Swin", "convnext_hf": "ConvNeXt", "resnet_hf": "ResNet",
    "segformer": "SegFormer", "videomae": "videos", "clip_text": "text tower", "vilt": "ViLT", "cvt": "CvT",
    "mamba": "Mamba", "lora": "LoRA", "diffusion": "diffusion", "unet": "diffusion", "optimizer": "optimizer",
    "yolo": "YOLO", "faster_rcnn": "detector", "llava": "images and text",
}  # fmt: skip
BLAME = ("whole file", "not whole", "incomplete", "truncated", "damaged", "give a file of", "again")
KNOWN = sorted(path for path in FOLDER.rglob("*.safetensors") if "before" not in path.parts)


def foreign(name: str, folder: Path) -> Path:
    """A file with the tensors of a foreign model."""
    file = folder / f"{name}.safetensors"
    save_file({key: torch.full(shape, 0.5, dtype=torch.float16) for key, shape in FOREIGN[name].items()}, file)
    return file


def test_every_foreign_file_has_an_expectation() -> None:
    assert FOUND.keys() == FOREIGN.keys() - {"vit_3d"}
    assert len(FOREIGN) >= 30


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FOUND)
def test_a_foreign_file_is_refused_by_what_it_is(tmp_path: Path, name: str) -> None:
    with raises("weights.unknown_format", f"{name}.safetensors") as caught:
        vitral.load(foreign(name, tmp_path))
    assert FOUND[name] in caught.value.message  # not only in the path
    assert not [words for words in BLAME if words in str(caught.value)]
    assert caught.value.hint


def test_a_hybrid_with_another_resnet_is_named_by_its_candidates(tmp_path: Path) -> None:
    names = ["cls_token", "patch_embed.backbone.conv1.0.weight", "patch_embed.backbone.layer1.0.conv1.weight"]
    names += ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight", "head.weight"]
    save_file({name: torch.ones(2, 2) for name in names}, tmp_path / "hybrid.safetensors")
    with raises("weights.unknown_format", "vit_base_resnet26d_224", "vit_small_resnet50d_s16_224") as caught:
        vitral.load(tmp_path / "hybrid.safetensors")
    assert "vit_small_r26_s32_224" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "changes", "code", "field"),
    [
        ("hf_vit", {"hidden_act": "relu2"}, "weights.unsupported", "hidden_act"),
        ("hf_dpt", {"is_hybrid": True}, "weights.unsupported", "is_hybrid"),
        ("hf_internvl", {"norm_type": "batch_norm"}, "weights.unsupported", "norm_type"),
        ("hf_mgp_str", {"distilled": True}, "weights.unsupported", "distilled"),
        ("hf_vit", {"processor": {"resample": 0}}, "weights.unsupported", "resample"),
        ("timm_clip", {"pretrained_cfg": {"crop_mode": "border"}}, "weights.unsupported", "border"),
        ("hf_vit", {"format": "hf-clip"}, "weights.bad_config", "model_type"),
    ],
)
def test_a_whole_file_with_a_part_that_no_model_here_has_is_not_blamed(
    tmp_path: Path, name: str, changes: dict[str, Any], code: str, field: str
) -> None:
    format, processor = changes.pop("format", ""), changes.pop("processor", None)
    with raises(code, field) as caught:
        vitral.load(folder(tmp_path / "a", name, processor=processor, **changes), format=format)
    assert not [words for words in BLAME if words in str(caught.value)]
    assert caught.value.hint


def test_a_relative_of_a_known_layout_is_not_blamed_for_its_own_tensors(tmp_path: Path) -> None:
    weights = reference("vit_pytorch").weights
    deep = weights | {"transformer.layers.0.0.reattn_norm.1.weight": torch.ones(2)}  # DeepViT
    settings = {"mixer.heads": 2, "stem.patch": "6x8", "image_size": "24x48"}
    with raises("weights.unexpected_tensor", "reattn_norm", "vit-pytorch's ViT with 2 layers", "--map") as caught:
        vitral.load(put(tmp_path / "deep", deep), settings=settings)
    assert not [words for words in BLAME if words in str(caught.value)]
    other = {name.replace("1.net.1.", "1.net.7."): tensor for name, tensor in weights.items()}
    with raises("weights.missing_tensor", "transformer.layers.0.1.net.1.weight", "--map") as caught:
        vitral.load(put(tmp_path / "other", other), settings=settings)
    assert not [words for words in BLAME if words in str(caught.value)]


def test_volumes_of_vit_pytorch_have_the_names_of_images_and_are_asked_for_settings(tmp_path: Path) -> None:
    with raises("weights.missing_setting", "stem.patch=", "mixer.heads=") as caught:
        vitral.load(foreign("vit_3d", tmp_path))
    assert not [words for words in BLAME if words in str(caught.value)]


def test_a_file_in_a_wrapper_is_named_too(tmp_path: Path) -> None:
    tensors = {f"module.{key}": torch.ones(shape) for key, shape in FOREIGN["pit"].items()}
    with raises("weights.unknown_format", "PiT", "module.transformers."):
        vitral.load(put(tmp_path / "wrapped", tensors))


def test_config_json_is_quoted(tmp_path: Path) -> None:
    tensors = {key: torch.ones(shape) for key, shape in FOREIGN["swin_hf"].items()}
    with raises("weights.unknown_format", "Swin", "model_type 'swin'"):
        vitral.load(put(tmp_path / "folder", tensors, {"model_type": "swin"}))


@pytest.mark.parametrize("file", KNOWN, ids=lambda path: path.stem)
def test_no_file_of_a_known_format_looks_foreign(file: Path) -> None:
    tensors = {name.removeprefix("weights/"): tensor for name, tensor in load_file(file).items()}
    assert identify({name: tensor for name, tensor in tensors.items() if "." in name}, ARCHITECTURES) is None


@pytest.mark.parametrize("format", [each for each in FORMATS if each.names], ids=lambda each: each.name)
def test_every_format_has_a_layout_to_compare_with(format: Format) -> None:
    found = example_layout(format)
    assert len(found) > 12
    assert all(format.short(name) == name for name in found)


def timm_without_a_name() -> dict[str, torch.Tensor]:
    """A file of timm whose layers are called otherwise."""
    return {name.replace("blocks.", "stack."): tensor for name, tensor in reference("timm_vit").weights.items()}


def test_comparing_with_every_layout_does_not_import_the_compiler_of_torch() -> None:
    code = (
        "import sys\n"
        "from vitral.weights.formats.registry import FORMATS\n"
        "from vitral.weights.formats.unknown import layout_patterns\n"
        "print(len(list(map(layout_patterns, FORMATS))), *{'torch._dynamo', 'sympy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(FORMATS))]


def test_the_nearest_layout_and_the_tensors_that_differ_are_named(tmp_path: Path) -> None:
    weights = reference("timm_vit").weights
    del weights["norm.bias"]
    weights |= {"blocks.0.attn.qkv.weight": weights["blocks.0.attn.qkv.weight"].mT, "extra.weight": torch.ones(3)}
    timm = next(each for each in FORMATS if each.name == "timm")
    near = compare_layout(Checkpoint(tmp_path / "file", weights, {}, {}), timm)
    assert (near.missing, near.surplus) == (["norm.bias"], ["extra.weight"])
    (shape,) = near.shapes
    assert shape.startswith("blocks.0.attn.qkv.weight (36, 108), expected (108, 36)")
    assert near.shared > 12


def test_a_layout_of_ones_own_is_pointed_to_the_rules(tmp_path: Path) -> None:
    with raises("weights.unknown_format", "timm", "missing: blocks.*.", "surplus: stack.*.", "--map"):
        vitral.load(put(tmp_path / "own", timm_without_a_name()))


def test_a_damaged_file_of_a_known_format_keeps_its_own_error(tmp_path: Path) -> None:
    weights = reference("timm_vit").weights
    del weights["blocks.1.norm1.bias"]
    with raises("weights.missing_tensor", "blocks.1.norm1.bias"):
        vitral.load(put(tmp_path / "damaged", weights), settings={"mixer.heads": 3, "image_size": "32x48"})


def test_tensors_that_are_nothing_known_are_listed(tmp_path: Path) -> None:
    with raises("weights.unknown_format", "2 tensors", "a.x, b.y"):
        vitral.load(put(tmp_path / "odd", {"b.y": torch.ones(2), "a.x": torch.ones(3)}))


def test_the_state_of_an_optimizer_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "saved.pt")
    with raises("weights.not_state_dict", "param_groups") as caught:
        vitral.load(tmp_path / "saved.pt", allow_pickle=True)
    assert "optimizer" in caught.value.message  # not only in the path


@pytest.mark.parametrize("name", ["swin", "cait", "llama"])
@pytest.mark.parametrize("verb", ["describe", "convert", "predict"])
def test_the_command_line_names_it(tmp_path: Path, name: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"convert": [str(tmp_path / "out")], "predict": ["sample"]}
    with pytest.raises(SystemExit) as left:
        cli.main([verb, str(foreign(name, tmp_path)), *more.get(verb, [])])
    shown, talk = capsys.readouterr()
    assert (left.value.code, shown) == (1, "")
    assert "error[weights.unknown_format]: " in talk
    assert FOUND[name] in talk
    assert not [words for words in BLAME if words in talk]
    assert not (tmp_path / "out").exists()
