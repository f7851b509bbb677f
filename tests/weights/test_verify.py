"""A model is compared with the library of its file, or it is said why not."""

import json
from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.models.references import FOLDER, reference
from tests.weights.formats.files import put
from tests.weights.oracles.fakes import fork_oracles, install_timm
from vitral.weights.load import LoadOptions

NOTES = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 5,
    "model_args": reference("timm_vit").config,
    "pretrained_cfg": {"input_size": [3, 32, 48], "mean": [0.5] * 3, "std": [0.5] * 3},
}


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return put(tmp_path / "hub", reference("timm_vit").weights, NOTES)


@pytest.fixture
def timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_timm(tmp_path / "packages", monkeypatch)
    fork_oracles(monkeypatch)


@pytest.mark.usefixtures("timm")
def test_a_certificate_has_run_the_source_library_on_the_source_file(hub: Path, tmp_path: Path) -> None:
    made = vitral.convert(hub, tmp_path / "out", verify=True).certificate
    found = json.loads((tmp_path / "out/certificate.json").read_bytes())
    assert (found["format"], found["source_library"]) == (2, "timm 9.9")
    assert found["source"]["tokens"] < 1e-5
    assert found["source"]["logits"] < 1e-5
    assert any("timm 9.9: tokens differ" in line for line in made.lines())


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("options", [{}, {"to": "timm"}, {"verify": True}])
def test_a_model_that_its_own_library_computes_otherwise_is_not_certified(
    hub: Path, tmp_path: Path, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TIMM_NORM_AFTER_BRANCH", "1")  # which no tensor shows
    with raises("weights.verification_failed", "timm 9.9", "tokens differ"):
        vitral.convert(hub, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    with raises("weights.verification_failed", "timm 9.9"):
        vitral.load(hub, verify=True)


def test_without_the_library_the_certificate_says_so_and_verify_refuses(hub: Path, tmp_path: Path) -> None:
    made = vitral.convert(hub, tmp_path / "out").certificate
    assert (made.source, made.source_library) == (None, "none: timm is not installed")
    assert any("not compared with the source library: timm is not installed" in line for line in made.lines())
    with raises("weights.verification_unavailable", "timm is not installed"):
        vitral.convert(hub, tmp_path / "second", verify=True)
    with raises("weights.verification_unavailable", "timm is not installed"):
        vitral.load(hub, verify=True)
    with raises("weights.verification_unavailable", tmp_path / "out"):
        vitral.load(tmp_path / "out", verify=True)  # a bundle has no other library


@pytest.mark.usefixtures("timm")
def test_a_bare_file_is_run_as_the_architecture_that_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = reference("timm_vit").weights
    folder = put(tmp_path / "bare", weights)
    settings = {"mixer.heads": 3, "image_size": "32x48"}
    with raises("weights.verification_unavailable", "--arch"):
        vitral.load(folder, settings=settings, verify=True)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("options", [LoadOptions(allow_pickle=True), LoadOptions(weights_key="ema", allow_pickle=True)])
def test_a_pickle_with_a_prefix_is_handed_to_the_library_as_plain_tensors(
    hub: Path, tmp_path: Path, options: LoadOptions
) -> None:
    weights = {f"module.{name}": tensor for name, tensor in reference("timm_vit").weights.items()}
    home = tmp_path / "pickled"
    home.mkdir()
    (home / "config.json").write_bytes((hub / "config.json").read_bytes())
    key = options.get("weights_key")
    torch.save({key: weights, "model": weights} if key else weights, home / "pytorch_model.bin")
    model = vitral.load(home, verify=True, **options).model
    assert torch.equal(model.state_dict()["norm.weight"], reference("timm_vit").weights["norm.weight"])


@pytest.mark.usefixtures("timm")
def test_what_was_written_is_run_by_the_target_library(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vitral.convert(hub, tmp_path / "out", to="timm").certificate
    assert (made.library, made.source_library) == ("timm 9.9", "timm 9.9")
    assert made.theirs is not None
    assert made.theirs.largest < 1e-5
    vitral.convert(hub, tmp_path / "ours")
    monkeypatch.setenv("FAKE_TIMM_REFUSES", "1")
    with raises("weights.conversion_unreadable", "timm 9.9", "Error(s) in loading state_dict"):
        vitral.convert(tmp_path / "ours", tmp_path / "refused", to="timm")
    assert not (tmp_path / "refused").exists()


@pytest.mark.usefixtures("timm")
def test_googles_file_is_run_by_timms_own_reader_of_npz(tmp_path: Path) -> None:
    made = vitral.convert(FOLDER / "google_vit.npz", tmp_path / "out", to="google", verify=True).certificate
    assert made.source_library == made.library == "timm 9.9, which reads Google's npz"
    assert made.source is not None
    assert made.theirs is not None
    assert made.source.logits is not None
    assert max(made.source.largest, made.theirs.largest) < 1e-5
    hidden = vitral.convert(FOLDER / "google_tanh.npz", tmp_path / "hidden").certificate
    assert hidden.source is not None
    assert (hidden.source.logits, hidden.source.largest < 1e-5) == (None, True)  # timm leaves the hidden layer out


@pytest.mark.parametrize(("name", "reason"), [("google_hybrid", "stem."), ("big_vision_sines", "sincos2d")])
def test_a_file_that_timm_reads_as_another_model_is_not_compared(name: str, reason: str, tmp_path: Path) -> None:
    settings = {"image_size": 16} if name == "big_vision_sines" else {}
    made = vitral.convert(FOLDER / f"{name}.npz", tmp_path / "out", settings=settings).certificate
    assert made.source is None
    assert made.source_library.startswith("none: timm, which reads such files, has another model for them")
    assert reason in made.source_library
    with raises("weights.verification_unavailable", "timm"):
        vitral.load(FOLDER / f"{name}.npz", settings=settings, verify=True)


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("name", ["dino", "dinov2"])
def test_a_backbone_of_facebook_is_run_by_timms_own_conversion(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a training checkpoint the backbone alone is handed over, under the names that timm reads."""
    backbone = {each.removeprefix("backbone.") for each in reference(name).weights}
    used = [each for each in backbone if not each.startswith("head.") and each != "mask_token"]
    monkeypatch.setenv("FAKE_TIMM_NAMES", json.dumps([each for each in used if ".ls" not in each]))
    folder = put(tmp_path / "in", reference(name).weights)
    if name == "dinov2":  # with LayerScale, which the stand-in does not have
        with raises("weights.verification_unavailable", "timm 9.9", "facebook's DINOv2", "ls1.gamma"):
            vitral.load(folder, settings={"mixer.heads": 2}, verify=True)
        return
    made = vitral.convert(folder, tmp_path / "out", settings={"mixer.heads": 2}, verify=True).certificate
    assert made.source_library == "timm 9.9, which reads files of facebook's DINO"
    assert made.source is not None
    assert made.source.largest < 1e-5


def test_without_timm_a_file_of_facebook_or_google_says_so(tmp_path: Path) -> None:
    folder = put(tmp_path / "in", reference("dino").weights)
    made = vitral.convert(folder, tmp_path / "out", settings={"mixer.heads": 2}).certificate
    assert (made.source, made.source_library) == (None, "none: timm is not installed")
