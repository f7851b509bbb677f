"""A server does not depend on the files of its models."""

from pathlib import Path

import torch

from tests.errors import raises
from tests.inference.truth import loaded
from tests.models.variants import small
from vitral.serving.models.snapshot import copy_files, copy_weights
from vitral.weights.load import load
from vitral.weights.save import save


def test_weights_in_memory_outlast_their_file(tmp_path: Path) -> None:
    model, bundle = loaded(small())
    save(model, tmp_path / "model", classes=bundle.classes, transform=bundle.transform)
    read = load(tmp_path / "model").model
    copy_weights(read)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    for name, tensor in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor)


def test_a_damaged_model_does_not_take_the_place_of_a_copy(tmp_path: Path) -> None:
    model, bundle = loaded(small())
    source, target = tmp_path / "model", tmp_path / "copies" / "model"
    save(model, source, classes=bundle.classes, transform=bundle.transform)
    target.parent.mkdir()
    assert copy_files(source, target)
    kept = {path.name: path.read_bytes() for path in target.iterdir()}
    (source / "model.safetensors").write_bytes(b"broken")
    with raises("weights.corrupt"):
        copy_files(source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == kept
    assert not copy_files("hf:owner/name", tmp_path / "copies" / "hub")
