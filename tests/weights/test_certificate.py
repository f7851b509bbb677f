"""The certificate: every changed tensor by name, and files of the first format."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import put
from vitral.weights.certificate import Difference, output_difference, read_certificate, tensor_changes
from vitral.weights.oracles.oracle import ModelOutputs

OLD = {  # as it was written before certificates had a number
    "vitral": "0.1.0",
    "torch": "2.13.0",
    "images": "2 of 32x32",
    "read": {"software": "timm", "file": "a.safetensors", "sha256": "0" * 64},
    "changed": ["layers 1 of 2 kept"],
    "written": {"software": "timm", "file": "model.safetensors", "sha256": "1" * 64},
    "library": "timm 1.0.30",
    "theirs": {"tokens": 1e-6, "logits": None},
    "again": {"tokens": 0.0, "logits": 0.0},
    "untold": [],
}


def changes(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[tuple[str, int, float]]:
    return [(each.name, each.values, each.largest) for each in tensor_changes(before, iter(after.items()))]


def test_every_tensor_whose_bits_differ_is_named_with_by_how_much() -> None:
    one = torch.tensor([1.0, 2.0, 0.0, 4.0])
    assert changes({"a": one}, {"a": one.clone()}) == []
    assert changes({"a": one}, {"a": torch.tensor([1.0, 2.5, 0.0, 4.25])}) == [("a", 2, 0.5)]
    assert changes({"a": one}, {"a": torch.tensor([1.0, 2.0, -0.0, 4.0])}) == [("a", 1, 0.0)]  # another bit
    assert changes({"a": one.bfloat16()}, {"a": one}) == []  # read as float32, the same values
    assert changes({"a": one.half()}, {"a": one + 1}) == [("a", 4, 1.0)]
    (other,) = tensor_changes({"a": one}, iter({"a": torch.zeros(2, 2)}.items()))
    assert other.describe() == "a: shape (4,) became (2, 2)"


def test_registers_with_positions_of_their_own_come_back_to_the_bit(tmp_path: Path) -> None:
    weights = reference("timm_registers_embedded").weights
    settings = {"mixer.heads": 2, "image_size": "32x48"}
    made = vitral.convert(put(tmp_path / "in", weights), tmp_path / "out", to="timm", settings=settings).certificate
    assert (made.tensors, made.changed) == ((), ())
    back = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(back[name], weights[name]) for name in back.keys() | weights.keys())


def test_tensors_that_are_combined_on_reading_are_in_the_certificate(tmp_path: Path) -> None:
    """A batch norm before a linear probe is read as part of the probe: the outputs agree, the bits do not come back."""
    weights = reference("layouts/mae_linear").weights
    made = vitral.convert(put(tmp_path / "in", weights), tmp_path / "out", settings={"mixer.heads": 2}).certificate
    probe = {"head.0.running_mean", "head.0.running_var", "head.1.weight", "head.1.bias"}
    assert {each.name for each in made.tensors} == {name for name in weights if name.startswith("head.")} >= probe
    assert all(change.describe() in made.changed for change in made.tensors)


def test_outputs_are_compared_relative_to_their_size() -> None:
    tokens = torch.full((1, 2, 3), 100.0)
    found = output_difference(ModelOutputs(tokens, None), ModelOutputs(tokens + 0.001, None))
    assert found.tokens == pytest.approx(1e-3, rel=0.1)
    assert found.largest == pytest.approx(1e-5, rel=0.1)
    assert Difference(tokens=0.1, logits=0.2).largest == 0.2
    with raises("weights.conversion_differs", (1, 2, 3), (1, 3, 3)):
        output_difference(ModelOutputs(tokens, None), ModelOutputs(torch.zeros(1, 3, 3), None))


def test_a_certificate_without_a_number_is_read(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_text(json.dumps(OLD))
    found = read_certificate(tmp_path)
    assert (found.format, found.source, found.tensors) == (2, None, ())
    assert found.theirs == Difference(tokens=1e-6, logits=None)
    assert any("not recorded" in line for line in found.lines())


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 9}', b'{"format": 1}'])
def test_what_is_no_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "certificate.json").write_bytes(content)
    with raises("weights.bad_config", "certificate.json"):
        read_certificate(tmp_path)


def test_a_sparse_document_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").touch()
    os.truncate(tmp_path / "certificate.json", 6 * 2**30)
    with raises("weights.file_too_large", tmp_path / "certificate.json"):
        read_certificate(tmp_path / "certificate.json")
