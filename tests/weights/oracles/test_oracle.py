"""Another library in a process of its own: its answers, or the reason why there are none."""

import sys
from pathlib import Path

import pytest
import torch

from tests.models.references import reference
from tests.weights.formats.files import put
from tests.weights.oracles.fakes import install_timm
from vitral.weights.oracles.oracle import OracleRequest, run_oracle

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
    request = OracleRequest("timm", {"folder": str(folder)})
    found = run_oracle(request, [torch.zeros(1, 3, 8, 8)])
    assert (found.opened, found.outputs, found.reason) == (True, {}, "Input size doesn't match model")
    monkeypatch.setenv("FAKE_TIMM_REFUSES", "1")
    found = run_oracle(request, [])
    assert (found.library, found.opened) == ("timm 9.9", False)
    assert "blocks.0.ls1.gamma" in found.reason


@pytest.mark.parametrize("module", ["transformers", "vit_pytorch", "torchvision"])
def test_every_library_that_is_not_installed_says_so(module: str) -> None:
    found = run_oracle(OracleRequest(module, {}), [])
    assert (found.library, found.opened) == ("", False)
    assert module in found.reason
