"""Files of weights, whole and corrupt: each is refused at once, by name."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

import vitral
from tests.errors import raises
from tests.weights.formats.timms import HINTS, timm_tensors
from vitral.core.config import parse_settings
from vitral.weights.load import open_model
from vitral.weights.reader import ReadOptions, read_checkpoint

Tensors = dict[str, Tensor]


def write(path: Path, tensors: Tensors) -> Path:
    save_file(tensors, path)
    return path


def header(path: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Change what a safetensors file says of its tensors, and leave the numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    said = json.loads(data[8 : 8 + length])
    change(said)
    text = json.dumps(said).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def overlap(said: dict[str, dict[str, object]]) -> None:
    said["norm.weight"]["data_offsets"] = said["norm.bias"]["data_offsets"]


CORRUPT: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "truncated in its header": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "empty": lambda path: path.write_bytes(b""),
    "a header of 2^63 bytes": lambda path: path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:]),
    "overlapping offsets": lambda path: header(path, overlap),
    "a pickle by another name": lambda path: torch.save({"norm.weight": torch.ones(3)}, path),
}


@pytest.mark.parametrize("damage", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_refused_by_name_in_under_a_second(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = write(tmp_path / "model.safetensors", timm_tensors())
    damage(path)
    started = time.process_time()
    with raises("weights.corrupt") as caught:
        vitral.load(path, settings=parse_settings([*HINTS]))
    assert time.process_time() - started < 1
    assert caught.value.where == str(path)


def missing(tensors: Tensors) -> None:
    del tensors["blocks.1.attn.proj.weight"]


def transposed(tensors: Tensors) -> None:
    tensors["blocks.0.mlp.fc1.weight"] = tensors["blocks.0.mlp.fc1.weight"].T.contiguous()


def unexpected(tensors: Tensors) -> None:
    tensors["blocks.0.adapter.weight"] = torch.ones(3)


def whole_numbers(tensors: Tensors) -> None:
    tensors["norm.bias"] = torch.ones(36, dtype=torch.int64)


def not_finite(tensors: Tensors) -> None:
    tensors["blocks.0.norm1.bias"] = torch.full((36,), float("nan"))


WRONG: dict[str, tuple[Callable[[Tensors], None], str, tuple[object, ...]]] = {
    "missing": (missing, "weights.missing_tensor", ("blocks.1.attn.proj.weight",)),
    "transposed": (transposed, "weights.shape_mismatch", ("blocks.0.mlp.fc1.weight", "(36, 90)", "(90, 36)")),
    "unexpected": (unexpected, "weights.unexpected_tensor", ("blocks.0.adapter.weight",)),
    "whole numbers": (whole_numbers, "weights.wrong_type", ("norm.bias", "int64")),
    "not finite": (not_finite, "weights.not_finite", ("blocks.0.norm1.bias", 36)),
}


@pytest.mark.parametrize(("damage", "code", "values"), WRONG.values(), ids=WRONG)
def test_a_wrong_tensor_is_named_as_the_file_names_it(
    tmp_path: Path, damage: Callable[[Tensors], None], code: str, values: tuple[object, ...]
) -> None:
    tensors = timm_tensors()
    damage(tensors)
    path = write(tmp_path / "w.safetensors", tensors)
    with raises(code, *values) as caught:
        vitral.load(path, settings=parse_settings([*HINTS]))
    assert caught.value.where == str(path)


def test_a_wrong_count_of_heads_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", timm_tensors())
    with raises("weights.bad_setting", path, "mixer.heads", 36, 5):
        vitral.load(path, settings={"mixer.heads": 5, "image_size": "32x48"})


def test_a_file_that_does_not_tell_its_heads_is_refused_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", timm_tensors())
    with raises("weights.missing_setting", path, "mixer.heads=N"):
        vitral.load(path, settings={"image_size": "32x48"})


def test_of_several_files_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write(tmp_path / name, timm_tensors())
    with raises("weights.ambiguous", tmp_path, "a.safetensors", "b.safetensors"):
        vitral.load(tmp_path, settings=parse_settings([*HINTS]))


def test_weights_spread_over_several_files_are_put_together(tmp_path: Path) -> None:
    tensors = timm_tensors()
    parts = dict.fromkeys(list(tensors)[:5], "model-1.safetensors")
    places = {name: parts.get(name, "model-2.safetensors") for name in tensors}
    for part in set(places.values()):
        write(tmp_path / part, {name: tensors[name] for name in tensors if places[name] == part})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    found = read_checkpoint(tmp_path).tensors
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_an_index_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    with raises("weights.bad_index", "../b.safetensors"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 100_000])
def test_an_index_without_a_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with raises("weights.bad_index", "model.safetensors.index.json"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("text", ["{", "[1]"])
def test_notes_that_are_no_fields_are_refused(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path / "model.safetensors", timm_tensors())
    (tmp_path / name).write_text(text)
    with raises("weights.bad_config", tmp_path / name):
        read_checkpoint(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").touch()
    with raises("weights.unknown_format", "w.gguf", ".safetensors", ".npz"):
        read_checkpoint(tmp_path / "w.gguf")


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", "model.bin", "model.pth.tar"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ("is empty",)),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346284714\n",
            ("Git LFS", "346,284,714", "git lfs pull"),
        ),
        (b"\n<!DOCTYPE html><html><title>404</title></html>", ("web page",)),
    ],
)
def test_what_a_download_left_in_place_of_weights_is_named(
    tmp_path: Path, name: str, content: bytes, said: tuple[str, ...]
) -> None:
    """Also where it has the name of a pickle, which nobody should be asked to trust."""
    (tmp_path / name).write_bytes(content)
    with raises("weights.corrupt", name, *said):
        vitral.load(tmp_path / name)


def test_a_format_of_no_known_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", timm_tensors())
    with raises("config.unknown_name", "tim", "timm"):
        vitral.load(path, settings=parse_settings([*HINTS]), format="tim")


def test_the_file_that_libraries_look_for_is_taken_among_others(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", timm_tensors())
    write(tmp_path / "model.fp16.safetensors", {"other": torch.ones(1)})
    assert read_checkpoint(tmp_path).path == tmp_path / "model.safetensors"


def test_one_file_goes_before_an_index_as_in_the_libraries_and_an_adapter_beside_it_is_named(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", timm_tensors())
    write(tmp_path / "adapter_model.safetensors", {"lora_A.weight": torch.ones(1)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    found = read_checkpoint(tmp_path)
    assert found.path == tmp_path / "model.safetensors"
    assert [line for line in found.messages if "adapter_model.safetensors" in line]


@pytest.mark.parametrize("index", [False, True])
def test_a_part_of_the_weights_is_not_read_as_the_model(tmp_path: Path, index: bool) -> None:
    tensors, parts = timm_tensors(), [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: parts[place % 2] for place, name in enumerate(tensors)}
    for part in parts:
        write(tmp_path / part, {name: tensors[name] for name in tensors if places[name] == part})
    with raises("weights.bad_index", parts[0], "not all of its weights"):
        read_checkpoint(tmp_path / parts[0])
    if not index:
        with raises("weights.bad_index", "model.safetensors.index.json"):
            read_checkpoint(tmp_path)
        return
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / parts[1]).unlink()
    with raises("weights.not_found", parts[1]):
        read_checkpoint(tmp_path)


def test_what_newer_folders_note_of_images_is_found_and_goes_first(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", timm_tensors())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_resize": False}))
    assert read_checkpoint(tmp_path).processor == {"do_resize": False}
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert read_checkpoint(tmp_path).processor == {"do_resize": False}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"do_resize": True}}))
    assert read_checkpoint(tmp_path).processor == {"do_resize": True}


def test_weights_in_half_precision_are_read_as_float32_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", {name: tensor.half() for name, tensor in timm_tensors().items()})
    found = open_model(path, *HINTS)
    assert found.messages[-1] == "weights in float16, read as float32"
    assert {weight.dtype for weight in found.loaded.model.state_dict().values()} == {torch.float32}
    assert found.loaded.model(torch.zeros(1, 3, 32, 48)).isfinite().all()


@pytest.mark.parametrize("wrapper", ["module.", "model.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_what_a_training_script_puts_before_every_name_is_left_out_and_told(tmp_path: Path, wrapper: str) -> None:
    plain = write(tmp_path / "plain.safetensors", timm_tensors())
    file = write(tmp_path / "file.safetensors", {f"{wrapper}{name}": each for name, each in timm_tensors().items()})
    found, own = open_model(file, *HINTS), open_model(plain, *HINTS)
    expected = own.loaded.model.state_dict()
    assert all(torch.equal(each, expected[name]) for name, each in found.loaded.model.state_dict().items())
    assert [line for line in found.messages if line not in own.messages] == [
        f"removed the prefix {wrapper!r} of all tensor names, which a training script added"
    ]


def test_the_mean_of_models_by_torch_is_read_without_its_count(tmp_path: Path) -> None:
    averaged = AveragedModel(torch.nn.Linear(2, 2)).state_dict()
    assert averaged.keys() - {"module.weight", "module.bias"} == {"n_averaged"}
    wrapped = {f"module.{name}": each for name, each in timm_tensors().items()} | {"n_averaged": torch.tensor(5)}
    found = open_model(write(tmp_path / "file.safetensors", wrapped), *HINTS)
    assert [line for line in found.messages if "n_averaged" in line]


def test_of_models_under_prefixes_each_is_named_and_a_key_chooses(tmp_path: Path) -> None:
    both = {f"{key}.{name}": each for key in ("model", "ema.module") for name, each in timm_tensors().items()}
    file = write(tmp_path / "file.safetensors", both | {"loss.weight": torch.ones(4)})
    with raises("weights.unknown_format", "under model", "under ema.module", "--weights-key model"):
        open_model(file, *HINTS)
    found = open_model(file, *HINTS, options=ReadOptions(weights_key="ema.module"))
    assert found.messages[0].startswith(f"ignored {len(timm_tensors()) + 1} tensors outside of ema.module: loss.weight")
    torch.save({"state_dict": both, "epoch": 3}, tmp_path / "file.ckpt")
    options = ReadOptions(weights_key="ema.module", allow_pickle=True)
    again = open_model(tmp_path / "file.ckpt", *HINTS, options=options)
    assert all(map(torch.equal, found.loaded.model.parameters(), again.loaded.model.parameters()))


def test_a_name_before_some_of_the_tensors_is_no_wrapper(tmp_path: Path) -> None:
    names = dict(timm_tensors())
    first = next(iter(names))
    wrapped = {f"model.{name}" if name != first else name: each for name, each in names.items()}
    with raises("weights.unknown_format", "file.safetensors", first):
        open_model(write(tmp_path / "file.safetensors", wrapped), *HINTS)


def test_a_tensor_in_two_files_of_an_index_is_refused(tmp_path: Path) -> None:
    tensors = timm_tensors()
    first, *rest = tensors
    write(tmp_path / "a.safetensors", {name: tensors[name] for name in (first, *rest[:3])})
    write(tmp_path / "b.safetensors", {name: tensors[name] for name in (first, *rest[3:])})
    places = {name: "a.safetensors" if name in rest[:3] else "b.safetensors" for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with raises("weights.duplicate_tensor", "index.json", first):
        read_checkpoint(tmp_path)
