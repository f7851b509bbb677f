"""What a server refuses before it starts."""

import pytest

from tests.errors import raises
from vitral.serving.config import ServeConfig, is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.example.org"])
def test_an_address_of_the_network_needs_a_token_or_insecure(host: str) -> None:
    with raises("config.no_token", host):
        ServeConfig(host=host)
    assert ServeConfig(host=host, token="secret").token == "secret"
    assert ServeConfig(host=host, insecure=True).insecure


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert ServeConfig(host=host).host == host


def test_a_token_is_one_word_of_ascii_and_is_not_shown() -> None:
    assert "secret" not in repr(ServeConfig(token="secret"))
    for token in ("two words", "süß", "line\n"):
        with raises("config.wrong_type", "token"):
            ServeConfig(token=token)


def test_a_certificate_needs_its_key() -> None:
    with raises("config.missing_value", "tls_key"):
        ServeConfig(tls_cert="cert.pem")
    with raises("config.missing_value", "tls_cert"):
        ServeConfig(tls_key="key.pem")
