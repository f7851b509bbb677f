"""The manifest of a bundle: every damaged byte is noticed and its file named; older bundles open, unverified."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

import vitral
from tests.errors import raises
from tests.flips import files_of, flipped, flips
from tests.weights.bundles import bundle_of, loaded, tensors_of
from tests.weights.damage import rewrite
from vitral.core import manifest
from vitral.core.errors import VitralError
from vitral.core.manifest import MANIFEST, add_to_manifest, own_files, read_manifest
from vitral.core.signature import create_key
from vitral.core.storage import FileDigest
from vitral.weights.bundle import begin_bundle, write_bundle
from vitral.weights.load import load, open_model

FIRST = Path(__file__).parent.parent / "fixtures/bundle_format_1"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "best", bundle_of(), tensors_of(), "# Card\n")
    return tmp_path / "best"


def assert_damage_is_noticed(bundle: Path, count: int) -> None:
    for path in files_of(bundle):
        for place, bit in flips(path.stat().st_size, count):
            with flipped(path, place, bit), pytest.raises(VitralError) as caught:
                load(bundle)
            # A damaged manifest may blame the file whose hash it has wrong.
            assert str(bundle) in caught.value.where, (path.name, place, bit)
            assert path.name == MANIFEST or caught.value.where == str(path), (path.name, place, bit)
            assert caught.value.code in {"weights.corrupt", "weights.not_found"}
    assert open_model(bundle).files == "verified"


def test_a_flipped_bit_anywhere_names_its_file(bundle: Path) -> None:
    assert_damage_is_noticed(bundle, 4)


@pytest.mark.slow
def test_a_flipped_bit_in_any_of_many_bytes_names_its_file(bundle: Path) -> None:
    assert_damage_is_noticed(bundle, 1000)


@pytest.fixture
def damaged(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bundle whose weights are hashed in a thread, and have a flipped bit."""
    monkeypatch.setattr("vitral.core.manifest.SMALL", 0)
    path = bundle / "model.safetensors"
    with flipped(path, path.stat().st_size - 1, 0):
        yield bundle


def test_a_large_file_is_hashed_beside_the_model_and_before_the_first_answer(damaged: Path) -> None:
    path = damaged / "model.safetensors"
    model, bundle = load(damaged)
    for _ in range(2):
        with raises("weights.corrupt", path):
            model(torch.ones(1, 3, 32, 48))
    with raises("weights.corrupt", path):
        model.state_dict()
    with raises("weights.corrupt", path):
        vitral.save(model, damaged.parent / "saved", classes=bundle.classes)
    assert not (damaged.parent / "saved").exists()
    for other in (open_model, vitral.Predictor):
        with raises("weights.corrupt", path):
            other(damaged)


def test_the_first_use_of_a_model_waits_until_its_weights_are_hashed(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, hashed = Event(), manifest.hash_files

    def slow(paths: Iterable[Path]) -> str:
        paths = list(paths)
        assert paths[0].name != "model.safetensors" or go_on.wait(30)
        return hashed(paths)

    monkeypatch.setattr(manifest, "SMALL", 0)
    monkeypatch.setattr(manifest, "hash_files", slow)
    model, answers = load(bundle).model, []
    thread = Thread(target=lambda: answers.append(model(torch.ones(1, 3, 32, 48))))
    thread.start()
    thread.join(timeout=0.2)
    assert thread.is_alive()
    go_on.set()
    thread.join(timeout=30)
    monkeypatch.undo()
    assert torch.equal(answers[0], load(bundle).model(torch.ones(1, 3, 32, 48)))


def test_the_child_of_a_fork_hashes_the_weights_itself(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = begin_bundle(damaged).check
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child, which has none of the threads
    check._hashing = [(entry, Future(), hint) for entry, _, hint in check._hashing]  # that no thread will ever fill
    with raises("weights.corrupt", damaged / "model.safetensors"):
        check.wait()


def test_large_classes_and_code_are_checked_before_they_are_used(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "SMALL", 0)
    text = (bundle / "config.json").read_bytes()
    (bundle / "config.json").write_bytes(text.replace(b'"dog"', b'"cow"'))
    with raises("weights.corrupt", bundle / "config.json"):
        load(bundle)


def test_the_card_may_be_edited(bundle: Path) -> None:
    (bundle / "README.md").write_text("mine")
    assert open_model(bundle).files == "verified"
    (bundle / "README.md").unlink()
    assert open_model(bundle).files == "verified"


def test_a_file_that_the_manifest_does_not_list_is_not_read_as_if_it_were(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    for name in ("config.json", "model.safetensors"):
        kept = tuple(entry for entry in manifest.files if entry.name != name)
        (bundle / MANIFEST).write_text(manifest.model_copy(update={"files": kept}).to_json())
        with raises("weights.corrupt", bundle / MANIFEST, name):
            load(bundle)


def test_a_bundle_without_its_manifest_is_refused(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    (bundle / MANIFEST).unlink()
    with raises("weights.no_manifest", bundle / MANIFEST, "--no-verify"):
        load(bundle)
    caplog.set_level(logging.INFO, "vitral")
    load(bundle, verify_files=False)
    assert "not verified" in caplog.text


def test_a_bundle_of_an_older_format_is_called_unverified(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vitral")
    load(FIRST)
    assert caplog.text.count("unverified") == 1
    assert open_model(FIRST).files == "unverified"


def test_a_format_that_is_set_back_does_not_hide_damage(bundle: Path) -> None:
    rewrite(format=4, classes=["dog", "cat", "Ünlü", "a|b"])(bundle)
    with raises("weights.corrupt", bundle / "config.json"):
        load(bundle)


def test_a_bundle_of_format_4_reads_as_it_did(bundle: Path) -> None:
    answer = load(bundle).model(torch.ones(1, 3, 32, 48))
    rewrite(format=4)(bundle)
    (bundle / MANIFEST).unlink()
    opened = open_model(bundle)
    assert (opened.loaded.bundle.format, opened.files) == (5, "unverified")
    assert torch.equal(opened.loaded.model(torch.ones(1, 3, 32, 48)), answer)


def test_damage_is_the_cause_even_where_another_error_comes_first(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.core.manifest.SMALL", 0)
    text = (bundle / "config.json").read_text()
    (bundle / "config.json").write_text(text.replace('"width": 8', '"width": 9'))
    with raises("weights.corrupt", bundle / "config.json"):
        load(bundle)


def test_what_was_converted_is_covered_with_its_certificate(bundle: Path, tmp_path: Path) -> None:
    vitral.convert(bundle, tmp_path / "copy")
    assert "certificate.json" in read_manifest(tmp_path / "copy").names
    with flipped(tmp_path / "copy/certificate.json", 40, 1), raises("weights.corrupt", "certificate.json"):
        load(tmp_path / "copy")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    create_key(tmp_path / "me.key")
    return tmp_path / "me.key"


def test_a_signed_bundle_opens_with_the_key_of_its_author_alone(bundle: Path, key: Path, tmp_path: Path) -> None:
    public = f"{key}.pub"
    with raises("weights.unsigned", bundle):
        load(bundle, require_signature=public)
    assert vitral.sign(bundle, key) == bundle / "manifest.sig"
    load(bundle, require_signature=public)
    with vitral.file_policy(require_signature=public):
        assert open_model(bundle).files == "signed"
    other = create_key(tmp_path / "other.key")
    with raises("weights.bad_signature", bundle / "manifest.sig", other):
        load(bundle, require_signature=other)


def test_what_was_changed_after_it_was_signed_is_refused(bundle: Path, key: Path) -> None:
    vitral.sign(bundle, key)
    rewrite(classes=["dog", "cat", "Ünlü", "a|b"])(bundle)
    with raises("weights.corrupt", bundle / "config.json"):
        load(bundle, require_signature=f"{key}.pub")
    content = (bundle / "config.json").read_bytes()
    add_to_manifest(bundle, {"config.json": FileDigest(len(content), hashlib.sha256(content).hexdigest())})
    assert load(bundle).bundle.classes[0] == "dog"  # a manifest alone does not stop who rewrites it
    with raises("weights.bad_signature", bundle / "manifest.sig"):
        load(bundle, require_signature=f"{key}.pub")


def test_a_required_signature_holds_for_every_model_that_is_read(key: Path) -> None:
    foreign = Path(__file__).parent.parent / "fixtures/timm_vit.safetensors"
    for path in (FIRST, foreign):
        with raises("weights.unsigned", path):
            load(path, require_signature=f"{key}.pub")
    with vitral.file_policy(require_signature=f"{key}.pub"), own_files():
        assert open_model(FIRST).files == "unverified"


def test_a_signature_is_not_required_of_files_that_are_not_verified(bundle: Path, key: Path) -> None:
    with raises("config.conflict", "--require-signature"):
        load(bundle, require_signature=f"{key}.pub", verify_files=False)


def test_a_signature_that_is_required_is_not_required_of_what_is_written(bundle: Path, key: Path) -> None:
    vitral.sign(bundle, key)
    with vitral.file_policy(require_signature=f"{key}.pub"):
        vitral.convert(bundle, bundle.parent / "copy")
        with raises("weights.unsigned", bundle.parent / "copy"):
            load(bundle.parent / "copy")


def test_a_model_in_memory_is_saved_with_a_manifest(tmp_path: Path) -> None:
    vitral.save(loaded().model, tmp_path / "mine", classes=("a", "b", "c", "d"))
    assert read_manifest(tmp_path / "mine").names == ["config.json", "model.safetensors"]
    entry = json.loads((tmp_path / "mine" / MANIFEST).read_text())["files"][0]
    assert list(entry) == ["name", "bytes", "sha256"]
