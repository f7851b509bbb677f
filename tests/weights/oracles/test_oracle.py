"""Another library in a separate process: its answers, or the reason why there are none."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import vitral
from benchmarks.round_trips.libraries import Libraries
from tests.models.references import reference
from tests.weights.formats.files import put
from tests.weights.formats.huggingface.folders import folder as hf_folder
from tests.weights.formats.huggingface.folders import vit
from tests.weights.oracles.fakes import fork_oracles, install_timm
from vitral.weights.formats.format import OracleFiles
from vitral.weights.formats.huggingface.clip import HfSiglip
from vitral.weights.formats.huggingface.towers import HfJanus
from vitral.weights.oracles import oracle
from vitral.weights.oracles.oracle import OracleRequest, run_oracle
from vitral.weights.oracles.transformers import runner

HUB = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": {"num_heads": 3}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = reference("timm_vit")
    return put(tmp_path / "hub", found.weights, HUB | {"num_classes": len(found.weights["head.bias"])})


def test_the_stand_in_computes_what_timm_itself_answered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_timm(tmp_path / "packages", monkeypatch)
    answers = reference("timm_vit").answers
    found = run_oracle(OracleRequest("timm", {"folder": str(folder)}), [answers["images"], torch.zeros(1, 3, 8, 8)])
    assert (found.library, found.opened, found.reason) == ("timm 9.9", True, "")
    assert list(found.outputs) == [0]  # the other batch has a size that it refuses
    outputs = found.outputs[0]
    assert outputs.logits is not None
    assert float((outputs.tokens - answers["tokens"]).abs().max()) < 1e-5
    assert float((outputs.logits - answers["logits"]).abs().max()) < 1e-5
    assert "timm" not in sys.modules


def test_a_library_that_is_not_there_or_broken_is_a_reason(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = OracleRequest("timm", {"folder": str(folder)})
    found = run_oracle(request, [])
    assert (found.library, found.outputs, found.reason) == ("", {}, "timm is not installed")
    install_timm(tmp_path / "packages", monkeypatch, "raise RuntimeError('operator torchvision::nms does not exist')")
    found = run_oracle(request, [])
    assert (found.library, found.opened) == ("", False)
    assert found.reason == "operator torchvision::nms does not exist"
    install_timm(tmp_path / "packages", monkeypatch, "import os; os._exit(7)")
    assert "ended with 7" in run_oracle(request, []).reason


def test_a_file_or_images_that_the_library_refuses_are_a_reason(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_timm(tmp_path / "packages", monkeypatch)
    fork_oracles(monkeypatch)
    request = OracleRequest("timm", {"folder": str(folder)})
    found = run_oracle(request, [torch.zeros(1, 3, 8, 8)])
    assert (found.opened, found.outputs, found.reason) == (True, {}, "Input size doesn't match model")
    monkeypatch.setenv("FAKE_TIMM_REFUSES", "1")
    found = run_oracle(request, [])
    assert (found.library, found.opened) == ("timm 9.9", False)
    assert "blocks.0.ls1.gamma" in found.reason


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", ["transformers", "vit_pytorch", "torchvision"])
def test_every_library_that_is_not_installed_says_so(module: str) -> None:
    found = run_oracle(OracleRequest(module, {}), [])
    assert (found.library, found.opened) == ("", False)
    assert module in found.reason


class TowerModel(torch.nn.Module):
    """A tower of transformers, whose pooled output is its first patch, as that of Janus."""

    config = SimpleNamespace(image_size=8)

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        tokens = pixel_values.flatten(2).mT  # (B, N, C)
        return SimpleNamespace(last_hidden_state=tokens, pooler_output=tokens[:, 0])


def test_a_pooled_output_that_the_model_does_not_follow_is_not_compared(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(runner(TowerModel(), logits=True)(images).logits, images[:, :, 0, 0])
    assert runner(TowerModel(), logits=False)(images).logits is None
    files = OracleFiles(tmp_path, tmp_path / "model.safetensors", tmp_path, {"model_type": "janus_vision_model"}, "")
    config = vit(vitral.load(hf_folder(tmp_path / "janus", "hf_janus")))
    assert HfJanus().oracle_request(files, config).arguments["logits"] is False
    assert "logits" not in HfSiglip().oracle_request(files, config).arguments


def test_one_process_for_all_files_of_a_library_gives_the_same_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_timm(tmp_path / "packages", monkeypatch)
    request, images = OracleRequest("timm", {"folder": str(folder)}), [reference("timm_vit").answers["images"]]
    expected = run_oracle(request, images)
    with Libraries() as libraries:
        monkeypatch.setattr(oracle, "run_process", libraries.run)
        for _ in range(2):
            found = run_oracle(request, images)
            assert (found.library, found.reason) == ("timm 9.9", "")
            assert torch.equal(found.outputs[0].tokens, expected.outputs[0].tokens)
        (process,) = libraries.processes.values()
        missing = run_oracle(OracleRequest("timm", {"folder": str(tmp_path / "none")}), images)
        assert (missing.opened, missing.outputs) == (False, {})
    assert process.returncode == 0
