"""Signatures: made with a private key, checked with the public one, and with no other."""

import stat
import sys
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.manifest import sign
from vitral.core.signature import check_signature, create_key, sign_bytes


@pytest.fixture
def key(tmp_path: Path) -> Path:
    assert create_key(tmp_path / "me.key") == tmp_path / "me.key.pub"
    return tmp_path / "me.key"


def test_a_private_key_is_for_its_owner_alone_and_never_replaced(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    content = key.read_bytes()
    with raises("config.path_exists", key):
        create_key(key)
    assert key.read_bytes() == content


def test_every_changed_bit_of_a_signature_is_noticed(key: Path, tmp_path: Path) -> None:
    signature, public = tmp_path / "manifest.sig", tmp_path / "me.key.pub"
    text = sign_bytes(b"content", key)
    signature.write_bytes(text)
    check_signature(b"content", signature, public)
    with raises("weights.bad_signature", signature):
        check_signature(b"contend", signature, public)
    for place in range(0, len(text) - 3, 7):  # the last character has bits that base64 does not use
        damaged = bytearray(text)
        damaged[place] ^= 1
        signature.write_bytes(damaged)
        with raises("weights.bad_signature", signature):
            check_signature(b"content", signature, public)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PUBLIC KEY-----\n", b"\xff" * 40])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    with raises("config.bad_key", tmp_path / "bad"):
        sign_bytes(b"", tmp_path / "bad")
    with raises("config.bad_key", tmp_path / "bad"):
        check_signature(b"", tmp_path / "sig", tmp_path / "bad")
    with raises("config.not_found", tmp_path / "gone"):
        sign_bytes(b"", tmp_path / "gone")


def test_keys_of_another_kind_are_refused(tmp_path: Path, key: Path) -> None:
    with raises("config.bad_key", f"{key}.pub"):
        sign_bytes(b"", Path(f"{key}.pub"))
    with raises("config.bad_key", key):
        check_signature(b"", tmp_path / "sig", key)


def test_a_folder_without_a_manifest_is_not_signed(tmp_path: Path, key: Path) -> None:
    with raises("weights.no_manifest", tmp_path):
        sign(tmp_path, key)


def test_signing_names_the_package_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with raises("config.missing_package", "vitral[sign]"):
        create_key(tmp_path / "key")
