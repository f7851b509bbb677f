"""Weights from one library to another, and the proof that nothing was lost on the way."""

import json
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import vitral
from tests.errors import raises
from tests.models.variants import small
from tests.weights.bundles import loaded
from tests.weights.formats.timms import HINTS, timm_tensors
from vitral.cli import main
from vitral.core.config import Size, parse_settings
from vitral.models import (
    Attention,
    AttentionPool,
    LayerScale,
    Learned1d,
    MeanAllPool,
    Mlp,
    Patches,
    PreNorm,
    Rope2d,
    TanhHead,
    Tokens,
)
from vitral.models.vit import Vit
from vitral.weights.certificate import output_difference
from vitral.weights.convert import Origin, convert, select_format, write_model
from vitral.weights.formats.format import Format
from vitral.weights.formats.registry import FORMATS, WRITABLE
from vitral.weights.formats.rules import Rule, export_tensors
from vitral.weights.oracles.oracle import ModelOutputs


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_file(timm_tensors(), tmp_path / "timm.safetensors")
    return tmp_path / "timm.safetensors"


def test_a_file_becomes_a_bundle_that_needs_no_more_telling(source: Path, tmp_path: Path) -> None:
    done = convert(str(source), str(tmp_path / "ours"), settings=parse_settings([*HINTS]))
    assert repr(done).splitlines() == [f"Conversion({str(done.folder)!r})", *done.certificate.lines()]
    model, bundle = vitral.load(tmp_path / "ours")
    found = json.loads((tmp_path / "ours/certificate.json").read_bytes())
    assert found["again"] == {"tokens": 0.0, "logits": 0.0, "relative": 0.0}
    assert (found["theirs"], found["library"]) == (None, "none: vitral itself reads a bundle")
    assert (found["changed"], found["tensors"]) == ([], [])
    for subject, file in (("read", source), ("written", tmp_path / "ours/model.safetensors")):
        assert found[subject]["sha256"] == sha256(file.read_bytes()).hexdigest()
        assert found[subject]["file"] == file.name
    assert str(tmp_path) not in (tmp_path / "ours/certificate.json").read_text()  # it may be published
    assert bundle.source == "timm's Vision Transformer, from timm.safetensors"
    expected = vitral.load(source, settings=parse_settings([*HINTS])).model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_there_and_back_again_is_equal_to_the_bit_and_certified(source: Path, tmp_path: Path) -> None:
    convert(str(source), str(tmp_path / "ours"), settings=parse_settings([*HINTS]))
    made = convert(str(tmp_path / "ours"), str(tmp_path / "theirs"), to="timm")
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == [
        "certificate.json",
        "config.json",
        "model.safetensors",
    ]
    certificate = json.loads((tmp_path / "theirs/certificate.json").read_bytes())
    assert json.loads(made.certificate.to_json()) == certificate
    assert certificate["again"] == {"tokens": 0.0, "logits": 0.0, "relative": 0.0}
    assert certificate["read"]["sha256"] != certificate["written"]["sha256"]
    assert len(certificate["written"]["sha256"]) == 64
    expected = timm_tensors()
    found = vitral.load(tmp_path / "theirs")  # config.json tells heads and image
    assert found.bundle.model == vitral.load(tmp_path / "ours").bundle.model
    convert(str(tmp_path / "theirs"), str(tmp_path / "again"), to="timm")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(tmp_path / "again").items())


def test_what_was_done_to_the_weights_is_in_the_certificate_and_the_card(source: Path, tmp_path: Path) -> None:
    convert(str(source), str(tmp_path / "whole"), settings=parse_settings([*HINTS]))
    made = convert(str(tmp_path / "whole"), str(tmp_path / "part"), layers=(1,))
    done = ("layers 1 of 2 kept",)
    assert (made.messages, made.certificate.changed) == (done, done)
    told = "timm's Vision Transformer, from timm.safetensors; layers 1 of 2 kept"
    assert vitral.load(tmp_path / "part").bundle.source == told
    assert told in (tmp_path / "part/README.md").read_text()


def test_a_model_that_stays_what_it_was_keeps_its_card(source: Path, tmp_path: Path) -> None:
    convert(str(source), str(tmp_path / "ours"), settings=parse_settings([*HINTS]))
    (tmp_path / "ours/README.md").write_text("# Bees\n\nRight on 91%.\n")
    convert(str(tmp_path / "ours"), str(tmp_path / "same"))
    assert (tmp_path / "same/README.md").read_text() == "# Bees\n\nRight on 91%.\n"
    convert(str(tmp_path / "ours"), str(tmp_path / "other"), image_size=64)
    assert "Not measured" in (tmp_path / "other/README.md").read_text()


def tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


GELU = Mlp(activation="gelu")
SQUARE = Size(32, 32)
NORMED = Patches(patch=Size(8, 8), norm="both")


@cache
def writable() -> dict[str, tuple[Format, Vit]]:
    """Each format with a model of its own that it can hold, and in which it is written."""
    erf, learned = Mlp(activation="gelu"), Learned1d(resampling="bicubic")
    candidates = [
        small(),
        small(mlp=erf),
        small(mlp=erf, position=learned),
        small(mlp=erf, position=learned, eps=1e-12),
        small(mlp=erf, position=learned, block=PreNorm(scale=LayerScale())),
        small(image_size=SQUARE, mlp=erf, position=Learned1d(resampling="bicubic_corners")),
        small(mlp=erf, stem=NORMED, mixer=Attention(heads=2, qkv_bias=False), eps=1e-5),
        small(position=Learned1d(cls=False), tokens=Tokens(cls=False), pool=AttentionPool()),
        small(mlp=Mlp(activation="relu"), head=TanhHead(num_classes=3, activation="relu"), eps=1e-5),
    ]
    return {
        f"{kind.name}-{number}": (kind, config)
        for number, (config, model) in enumerate((each, loaded(each)) for each in candidates)
        for kind in FORMATS
        if not list(kind.unsupported(model.bundle)) and select_format(model, kind.library) is kind
    }


@pytest.mark.parametrize(("kind", "model"), writable().values(), ids=writable())
def test_a_round_trip_through_every_writable_format_is_equal_to_the_bit(
    tmp_path: Path, kind: Format, model: Vit
) -> None:
    before = loaded(model)
    (tmp_path / "file").write_bytes(b"")
    write_model(before, Origin(tmp_path / "file"), tmp_path / "out", kind.library)
    hints = (f"image_size={model.image_size}", *kind.required_settings(model))
    after = vitral.load(tmp_path / "out", settings=parse_settings([*hints]), format=kind.name)
    expected = before.model.state_dict()
    assert after.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in after.model.state_dict().items())


def test_every_library_that_is_written_holds_some_model() -> None:
    held = {kind.library for kind, _ in writable().values()}
    assert held == set(WRITABLE) - {"vitral"}


def test_a_part_without_counterpart_is_named(tmp_path: Path) -> None:
    model = loaded(small(position=Rope2d(), pool=MeanAllPool()))
    with raises("weights.no_counterpart", "timm", "position", "rope2d"):
        write_model(model, Origin(tmp_path), tmp_path / "out", "timm")
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with raises("config.path_exists", tmp_path / "out"):
        convert(str(source), str(tmp_path / "out"), settings=parse_settings([*HINTS]))


def test_a_conversion_that_answers_otherwise_is_not_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(rules: list[Rule], own: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor + 0.01 for name, tensor in export_tensors(rules, own).items()}

    monkeypatch.setattr("vitral.weights.convert.export_tensors", changed)
    with raises("weights.conversion_differs", source):
        convert(str(source), str(tmp_path / "out"), settings=parse_settings([*HINTS]), to="timm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timm.safetensors"]


def test_answers_that_are_not_finite_are_no_conversion() -> None:
    tokens = torch.zeros(1, 2, 3)
    with raises("weights.conversion_differs"):
        output_difference(ModelOutputs(tokens, None), ModelOutputs(tokens / 0, None))


def test_what_the_files_have_no_place_for_is_told(tmp_path: Path) -> None:
    model = loaded(small(image_size=SQUARE, mlp=GELU, position=Learned1d(resampling="bicubic_corners")))
    (tmp_path / "file").write_bytes(b"")
    certificate = write_model(model, Origin(tmp_path / "file"), tmp_path / "out", "torchvision")
    assert certificate.untold[0] == "not in the files: the names of the 4 classes"
    assert certificate.untold[1].startswith("not in the files: the preprocessing (32x32, crop resize, mean 0.5,")


def test_a_scaling_is_told_whether_it_has_one_number_or_one_for_each_channel(tmp_path: Path) -> None:
    model = loaded(small(image_size=SQUARE, mlp=GELU, position=Learned1d(resampling="bicubic_corners")))
    (tmp_path / "file").write_bytes(b"")
    assert len(model.bundle.preprocessing.normalize.mean) == 1
    certificate = write_model(model, Origin(tmp_path / "file"), tmp_path / "out", "huggingface")
    assert certificate.untold[1:] == (
        "not in the files: positions for images of other sizes are resampled as bicubic_corners; read back, as bicubic",
    )


def test_a_scale_of_photos_that_changes_their_pixels_is_told(tmp_path: Path) -> None:
    model = loaded(small(image_size=SQUARE, mlp=GELU, position=Learned1d(resampling="bicubic")))
    (tmp_path / "file").write_bytes(b"")
    untold = {}
    for scale in ("smallest", "triple", "full"):
        needs = model.bundle.preprocessing.with_decoding(jpeg_scale=scale)
        changed = model._replace(bundle=model.bundle.model_copy(update={"preprocessing": needs}))
        certificate = write_model(changed, Origin(tmp_path / "file"), tmp_path / scale, "huggingface")
        untold[scale] = [each for each in certificate.untold if "photos" in each]
    assert untold["triple"] == untold["full"] == []
    assert len(untold["smallest"]) == 1


def test_positions_that_would_be_resampled_otherwise_for_the_images_seen_are_refused(tmp_path: Path) -> None:
    model = loaded(small(image_size=SQUARE, mlp=GELU))
    needs = model.bundle.preprocessing.model_copy(update={"image_size": Size(48, 48)})
    seen = model._replace(bundle=model.bundle.model_copy(update={"preprocessing": needs}))
    (tmp_path / "file").write_bytes(b"")
    with raises("weights.resampling_differs", "32x32", "bicubic_antialias", "timm", "bilinear", "--image-size 48x48"):
        write_model(seen, Origin(tmp_path / "file"), tmp_path / "out", "timm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    write_model(vitral.adapt(seen, image_size=48).loaded, Origin(tmp_path / "file"), tmp_path / "out", "timm")
    write_model(seen, Origin(tmp_path / "file"), tmp_path / "ours", "vitral")


def test_a_size_seen_that_is_not_the_tables_comes_back_from_timms_files(tmp_path: Path) -> None:
    model = loaded(small(image_size=SQUARE, mlp=GELU, position=Learned1d(resampling="bicubic_antialias")))
    needs = model.bundle.preprocessing.model_copy(update={"image_size": Size(48, 48)}).with_decoding(jpeg_scale="full")
    seen = model._replace(bundle=model.bundle.model_copy(update={"preprocessing": needs}))
    (tmp_path / "file").write_bytes(b"")
    certificate = write_model(seen, Origin(tmp_path / "file"), tmp_path / "out", "timm")
    assert certificate.images.startswith("2 of 32x32 and 2 of 48x48, ")
    assert certificate.untold == ()
    arguments = json.loads((tmp_path / "out/config.json").read_bytes())["model_args"]
    assert (arguments["img_size"], arguments["dynamic_img_size"]) == ([32, 32], True)
    again = vitral.load(tmp_path / "out").bundle
    assert (again.model.image_size, again.preprocessing.image_size) == ((32, 32), (48, 48))


@pytest.mark.parametrize("to", ["vitral", "timm"])
def test_a_place_that_cannot_be_written_to_is_told(source: Path, tmp_path: Path, to: str) -> None:
    with raises("file.write_failed", source):
        convert(str(source), str(source / "out"), settings=parse_settings([*HINTS]), to=to)


def test_an_unknown_library_is_refused_before_anything_is_read_or_made(tmp_path: Path) -> None:
    with raises("config.unknown_name", "jax", "vitral", "timm", "vit-pytorch"):
        convert("nowhere", str(tmp_path / "new/out"), to="jax")
    assert list(tmp_path.iterdir()) == []


def test_settings_tell_what_is_open_and_change_nothing_else(source: Path, tmp_path: Path) -> None:
    with raises("config.unsupported", "position"):
        convert(str(source), str(tmp_path / "out"), settings=parse_settings([*HINTS, "position=rope2d"]))


def test_a_folder_of_the_users_beside_the_result_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.tmp-new").mkdir()
    (tmp_path / "out.tmp-new/precious").touch()
    convert(str(source), str(tmp_path / "out"), settings=parse_settings([*HINTS]), to="timm")
    assert (tmp_path / "out.tmp-new/precious").exists()


def test_the_command_tells_what_it_did(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    words = ["convert", str(source), out, "--set", HINTS[0], "--set", HINTS[1], "--image-size", "64", "--layers", "1"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out.strip() == out
    bundle = vitral.load(out).bundle
    assert (bundle.model.image_size, bundle.preprocessing.image_size) == ((64, 64), (64, 64))
    assert isinstance(bundle.model, Vit)
    assert bundle.model.depth == 1
