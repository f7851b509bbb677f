"""A certificate for this machine, signed by itself."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


class Certificate(NamedTuple):
    """Its files, in PEM format."""

    cert: Path
    key: Path


def write_certificate(folder: Path, password: bytes = b"") -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    folder.mkdir(parents=True, exist_ok=True)
    found = Certificate(folder / "cert.pem", folder / "key.pem")
    found.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    found.key.write_bytes(key.private_bytes(*form, lock))
    return found
