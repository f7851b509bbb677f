"""Who may ask."""

import pytest
from starlette.datastructures import Headers

from tests.errors import raises
from vitral.serving.config import ServeConfig
from vitral.serving.http.access import check_access, check_host, check_origin, check_token

LOCAL = ServeConfig()
NETWORK = ServeConfig(host="0.0.0.0", token="secret", hosts=("photos.example.org",))


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LocalHost:80", "[::1]:8000"])
def test_a_local_server_answers_to_the_names_of_loopback(host: str) -> None:
    check_host(LOCAL, host)


@pytest.mark.parametrize(
    "host", ["evil.example", "192.168.1.7:8000", "", "localhost.evil.example", "127.0.0.1.evil.example", "[", "a@b:x"]
)
def test_a_local_server_answers_to_no_other_name(host: str) -> None:
    with raises("serve.wrong_host", "Host"):
        check_host(LOCAL, host)


def test_a_server_of_the_network_answers_to_addresses_and_to_names_that_were_given() -> None:
    for host in ("192.168.1.7:8000", "[fe80::1]", "photos.example.org", "localhost:8000"):
        check_host(NETWORK, host)
    with raises("serve.wrong_host"):
        check_host(NETWORK, "evil.example")


def test_a_page_of_another_origin_is_refused_unless_named() -> None:
    own = {"host": "127.0.0.1:8000"}
    check_origin(LOCAL, Headers(own))
    check_origin(LOCAL, Headers({**own, "origin": "http://127.0.0.1:8000"}))
    check_origin(ServeConfig(cors=("https://a.example",)), Headers({**own, "origin": "https://a.example"}))
    for origin in ("https://a.example", "null", "http://127.0.0.1:9000", "http://[evil"):
        with raises("serve.wrong_origin", "Origin"):
            check_origin(LOCAL, Headers({**own, "origin": origin}))


@pytest.mark.parametrize("header", ["", "secret", "Bearer", "Bearer wrong", "Basic secret", "Bearer secretsecret"])
def test_a_missing_or_wrong_token_is_refused(header: str) -> None:
    with raises("serve.unauthorized", "Authorization"):
        check_token("secret", header)


def test_the_right_token_opens_what_needs_one() -> None:
    for header in ("Bearer secret", "bearer secret"):
        check_token("secret", header)
    own = {"host": "localhost"}
    for path in ("/", "/page/page.js", "/healthz", "/readyz", "/docs", "/docs/start.js", "/openapi.json"):
        check_access(NETWORK, path, Headers(own))
    for path in ("/v1/models", "/v1/predict", "/metrics", "/v2", "/v2/models/vit/infer", "/other"):
        with raises("serve.unauthorized"):
            check_access(NETWORK, path, Headers(own))
        check_access(NETWORK, path, Headers({**own, "authorization": "Bearer secret"}))
