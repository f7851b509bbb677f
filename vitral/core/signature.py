"""Ed25519 signatures of manifests, which cover every file that the manifest lists. Needs `pip install 'vitral[sign]'`.

A private key is a PEM file that only its owner reads; the public key is a PEM file of the same name with `.pub`. A
signature is the text of 64 bytes in base64.
"""

import base64
import binascii
import os
from pathlib import Path
from typing import Any

from vitral.core.errors import ConfigError, WeightsError
from vitral.core.files import read_file
from vitral.core.imports import load_cryptography
from vitral.core.storage import STORAGE, os_error_message, wrap_read_errors, wrap_write_errors

PUBLIC_SUFFIX = ".pub"


def create_key(path: Path) -> Path:
    """Write a new private key, which nobody else may read, and its public key; return the path of the latter."""
    crypto = load_cryptography()
    public = path.with_name(f"{path.name}{PUBLIC_SUFFIX}")
    for each in (path, public):
        if os.path.lexists(each):
            message, hint = "already exists and is not overwritten", "choose another name"
            raise ConfigError(message, code="config.path_exists", where=each, hint=hint)
    key, form = crypto.ed25519.Ed25519PrivateKey.generate(), crypto.serialization
    private_text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public_text = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    with wrap_write_errors(path):
        STORAGE.write_file(path, [memoryview(private_text)], mode=0o600)
        STORAGE.write_file(public, [memoryview(public_text)])
        STORAGE.fsync(path.parent)
    return public


def sign_bytes(content: bytes, private_key: Path) -> bytes:
    """The signature of some bytes, as a line of text."""
    form = load_cryptography().serialization
    key = _read_key(private_key, lambda text: form.load_pem_private_key(text, password=None), "private")
    return base64.b64encode(key.sign(content)) + b"\n"


def check_signature(content: bytes, signature: Path, public_key: Path) -> None:
    """Raise WeightsError unless a file holds the signature of these bytes by the owner of a public key."""
    crypto = load_cryptography()
    key = _read_key(public_key, crypto.serialization.load_pem_public_key, "public")
    if not os.path.lexists(signature):
        message, hint = "is not signed", "sign it: vitral sign BUNDLE --key KEY"
        raise WeightsError(message, code="weights.unsigned", where=signature.parent, hint=hint)
    with wrap_read_errors(signature):
        text = read_file(signature)
    try:
        key.verify(base64.b64decode(text.removesuffix(b"\n"), validate=True), content)
    except (crypto.exceptions.InvalidSignature, binascii.Error, ValueError):
        message = f"is not the signature of this manifest by the key {public_key}"
        hint = "do not use these files, or give the key of their author"
        raise WeightsError(message, code="weights.bad_signature", where=signature, hint=hint) from None


def _read_key(path: Path, load: Any, kind: str) -> Any:
    """The Ed25519 key in a PEM file; ConfigError if it is none."""
    try:
        text = read_file(path)
    except OSError as error:
        message, hint = f"cannot be read: {os_error_message(error)}", "check the path of the key"
        raise ConfigError(message, code="config.not_found", where=path, hint=hint) from None
    try:
        key = load(text)
        if "Ed25519" in type(key).__name__:
            return key
    except (ValueError, TypeError, load_cryptography().exceptions.UnsupportedAlgorithm):
        pass  # no key, an encrypted one, or one of another kind
    message = f"not the file of an Ed25519 {kind} key"
    raise ConfigError(message, code="config.bad_key", where=path, hint="create keys with vitral sign --new-key KEY")
