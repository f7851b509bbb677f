"""What every request passes."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serving.client import JPEG, SECONDS, ask, connect, held, photo, tiny_server, wait_for
from vitral.serving.config import Limits
from vitral.serving.server import Server


def test_a_request_gets_its_id_back(server: Server) -> None:
    assert ask(server.url, "/healthz", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    one, two = (ask(server.url, "/healthz").headers["x-request-id"] for _ in range(2))
    assert one != two
    for wrong in ("a b", "x" * 65, "<script>"):
        assert ask(server.url, "/healthz", headers={"X-Request-ID": wrong}).headers["x-request-id"] != wrong


def test_every_answer_has_a_content_security_policy(server: Server) -> None:
    for path in ("/healthz", "/v1/models", "/nothing", "/docs"):
        headers = ask(server.url, path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in ask(server.url, "/v1/models").headers


def test_a_foreign_host_or_origin_is_refused(server: Server) -> None:
    wrong = ask(server.url, "/v1/models", headers={"Host": "evil.example"})
    assert (wrong.status, wrong.code) == (421, "serve.wrong_host")
    wrong = ask(server.url, "/v1/predict", photo(), {**JPEG, "Origin": "http://evil.example"})
    assert (wrong.status, wrong.code) == (403, "serve.wrong_origin")


def test_the_log_has_the_request_but_not_its_content(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vitral")
    name = {"Content-Type": "image/jpeg", "X-Request-ID": "look-at-me", "Authorization": "Bearer hush"}
    ask(server.url, "/v1/predict?label=private", b"secret picture", name)
    wait_for(lambda: "look-at-me" in caplog.text)
    (line,) = [each.message for each in caplog.records if "look-at-me" in each.message]
    said = json.loads(line)
    assert (said["method"], said["route"], said["status"]) == ("POST", "/v1/predict", 422)
    assert (said["code"], said["bytes"]) == ("data.unknown_format", 14)
    assert not any(word in caplog.text for word in ("secret", "private", "hush"))


def abandoned(server: Server) -> float:
    """How many requests of this process were left by their clients."""
    text = ask(server.url, "/metrics").body.decode()
    return float(text.partition("\nvitral_abandoned_total ")[2].split()[0])


def test_a_client_that_leaves_is_not_computed_for(server: Server) -> None:
    body, before = photo(), abandoned(server)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}"
    with held(server) as engine, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server.url, "/v1/predict", body)
        assert engine.begun.wait(SECONDS)
        with connect(server.url) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            wait_for(lambda: server.service.admission.images == 2)
            wait_for(lambda: len(server.service.models["vit"].batchers["logits"]._waiting) == 1)
        wait_for(lambda: server.service.admission.images == 1)
        engine.released.set()
        assert first.result().status == 200
        assert ask(server.url, "/v1/predict", body).status == 200
        assert engine.sizes == [1, 1]  # the image in between was left out
    assert abandoned(server) == before + 1


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a token, and an origin that may use it."""
    with tiny_server(token="secret", cors=("https://a.example",)) as running:
        yield running


RIGHT = {**JPEG, "Authorization": "Bearer secret"}


def test_a_token_is_asked_for(guarded: Server) -> None:
    for headers in (JPEG, {**JPEG, "Authorization": "Bearer wrong"}):
        answer = ask(guarded.url, "/v1/predict", photo(), headers)
        assert (answer.status, answer.code) == (401, "serve.unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert ask(guarded.url, "/v1/predict", photo(), RIGHT).status == 200
    assert ask(guarded.url, "/readyz").status == 200


def test_an_origin_that_was_named_may_ask(guarded: Server) -> None:
    origin = {"Origin": "https://a.example"}
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    before = ask(guarded.url, "/v1/predict", headers=asked, method="OPTIONS")
    assert (before.status, before.headers["access-control-allow-origin"]) == (200, "https://a.example")
    after = ask(guarded.url, "/v1/predict", photo(), {**RIGHT, **origin})
    assert (after.status, after.headers["access-control-allow-origin"]) == (200, "https://a.example")


def test_a_full_queue_refuses(server: Server) -> None:
    most = server.config.limits.queue
    with held(server) as engine, ThreadPoolExecutor(most) as pool:
        accepted = [pool.submit(ask, server.url, "/v1/predict", photo()) for _ in range(most)]
        wait_for(lambda: server.service.admission.images == most)
        refused = ask(server.url, "/v1/predict", photo())
        assert (refused.status, refused.code) == (429, "serve.queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        engine.released.set()
        assert [each.result().status for each in accepted] == [200] * most


def test_what_waits_too_long_for_its_batch_is_refused() -> None:
    with tiny_server(limits=Limits(wait_seconds=0.3)) as server, held(server) as engine, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, server.url, "/v1/predict", photo())
        assert engine.begun.wait(SECONDS)
        waited = ask(server.url, "/v1/predict", photo())
        assert (waited.status, waited.code) == (503, "serve.queue_timeout")
        assert int(waited.headers["retry-after"]) >= 1
        engine.released.set()
        assert first.result().status == 200


def test_a_request_past_its_deadline_is_given_up() -> None:
    with tiny_server(limits=Limits(deadline=0.3)) as server, held(server):
        answer = ask(server.url, "/v1/predict", photo())
        assert (answer.status, answer.code) == (503, "serve.deadline")
        assert int(answer.headers["retry-after"]) >= 1
        wait_for(lambda: server.service.admission.images == 0)
