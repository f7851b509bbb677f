"""The files of a checkpoint that two processes wrote, and what happens when they cannot."""

from pathlib import Path

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from vitral.training.checkpoints.checkpoint import open_checkpoint, verify

STEP = "step-00000007"


def test_every_process_writes_a_file_and_the_manifest_vouches_for_all(played: Path) -> None:
    folder = played / "saved-by-fsdp" / STEP
    names = ["shard-1-of-2.safetensors", "shard-2-of-2.safetensors", "state.json"]
    assert verify(folder).names == names
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "manifest.json"])
    sizes = [(folder / name).stat().st_size for name in names[:2]]
    assert max(sizes) < 0.6 * sum(sizes)


def test_torch_finds_the_same_tensors_in_them(played: Path) -> None:
    checkpoint = open_checkpoint(played / "saved-by-fsdp" / STEP)
    whole = checkpoint.load().tensors
    known = HuggingFaceStorageReader(str(checkpoint.path)).read_metadata().state_dict_metadata
    assert set(known) == {f"{group}/{name}" for group, tensors in whole.items() for name in tensors}
    for address, entry in known.items():
        group, _, name = address.partition("/")
        assert isinstance(entry, TensorStorageMetadata)
        assert entry.size == whole[group][name].shape
        assert sum(torch.Size(chunk.sizes).numel() for chunk in entry.chunks) == whole[group][name].numel()


def test_what_one_process_cannot_write_all_are_told(played: Path) -> None:
    words = [(played / f"full-{rank}.txt").read_text() for rank in range(2)]
    assert words[0] == words[1]
    assert words[0].startswith("file.write_failed ")
