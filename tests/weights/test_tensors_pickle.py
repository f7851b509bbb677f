"""Pickles are read only for who asks, and nothing in them is run."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

import vitral
from tests.errors import raises
from vitral.weights.tensors import read_torch_pickle


class Hostile:
    """What makes a folder as soon as it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.folder),))


def test_a_hostile_pickle_runs_nothing_under_any_name(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    torch.save({"weight": torch.ones(2), "more": Hostile(mark)}, tmp_path / "hostile.pth")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Hostile(mark), protocol=2))
    for name in ("hostile.safetensors", "hostile.npz"):
        (tmp_path / name).write_bytes((tmp_path / "hostile.pth").read_bytes())
    (tmp_path / "plain.safetensors").write_bytes((tmp_path / "plain.pt").read_bytes())
    codes = {
        "hostile.pth": ("weights.pickle_refused", "weights.unsafe_pickle"),
        "plain.pt": ("weights.pickle_refused", "weights.unsafe_pickle"),
        "hostile.safetensors": ("weights.corrupt", "weights.corrupt"),
        "hostile.npz": ("weights.bad_archive", "weights.bad_archive"),
        "plain.safetensors": ("weights.corrupt", "weights.corrupt"),
    }
    for name, expected in codes.items():
        for allowed, code in zip((False, True), expected, strict=True):
            with raises(code, name):
                vitral.load(tmp_path / name, allow_pickle=allowed)
            assert not mark.exists()
    pickle.loads((tmp_path / "plain.pt").read_bytes())  # it would have
    assert mark.exists()


def test_a_pickle_is_refused_with_the_command_that_reads_it(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "w.pth")
    for path in (tmp_path / "w.pth", tmp_path):
        with raises("weights.pickle_refused", f"vitral convert {tmp_path}/w.pth NEW-FOLDER", "--allow-pickle"):
            vitral.load(path)


def test_the_state_dict_is_found_in_what_training_scripts_wrap_around_it(tmp_path: Path) -> None:
    weights = {"a.weight": torch.ones(2), "b.bias": torch.zeros(3)}
    for wrapped in (weights, {"model": weights, "epoch": 3}, {"state_dict": {"model": weights}}, {"teacher": weights}):
        torch.save(wrapped, tmp_path / "w.pt")
        assert read_torch_pickle(tmp_path / "w.pt").tensors.keys() == weights.keys()


def test_advice_to_run_what_a_file_holds_is_not_passed_on(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1), "hook": Path("x")}, tmp_path / "w.pt")
    with raises("weights.unsafe_pickle", "pathlib.") as caught:
        read_torch_pickle(tmp_path / "w.pt")
    assert "weights_only" not in str(caught.value)


def test_a_cut_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(100)}, tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:200])
    with raises("weights.corrupt", "w.pt"):
        read_torch_pickle(tmp_path / "w.pt")
