"""A server's life, in real processes."""

import json
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.errors import raises
from tests.inference.truth import loaded
from tests.models.variants import small
from tests.serving.certificate import write_certificate
from tests.serving.client import JPEG, SECONDS, ask, connect, held, photo, tiny_server, wait_for
from tests.serving.process import Process
from vitral.inference.predictor import Predictor
from vitral.serving.config import Limits, ServeConfig
from vitral.serving.server import NOTICE, Server, bind
from vitral.weights.load import LoadedModel
from vitral.weights.save import save


def test_a_port_that_is_taken_is_an_error() -> None:
    with bind(ServeConfig(port=0)) as own:
        own.listen()
        port = own.getsockname()[1]
        with raises("config.address", port):
            bind(ServeConfig(port=port))
    with raises("config.address"):
        Server({"vit": loaded(small())}, ServeConfig(host="192.0.2.1", token="secret", port=0))


def test_https_is_served_with_a_certificate(tmp_path: Path) -> None:
    made = write_certificate(tmp_path)
    config = ServeConfig(port=0, engine="eager", decoders=1, tls_cert=str(made.cert), tls_key=str(made.key))
    with Server({"vit": loaded(small())}, config) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=made.cert)
        request = Request(f"{server.url}/v1/predict?top=1", photo(), JPEG)
        with urlopen(request, timeout=SECONDS, context=trust) as answer:
            assert len(json.load(answer)["predictions"]) == 1


def test_files_that_are_no_certificate_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    one, two = write_certificate(tmp_path / "one"), write_certificate(tmp_path / "two")
    locked = write_certificate(tmp_path / "locked", b"secret")
    for cert, key in ((tmp_path / "none.pem", one.key), (one.cert, two.key), (one.key, one.cert), locked):
        with raises("config.bad_certificate", cert):
            bind(ServeConfig(port=0, tls_cert=str(cert), tls_key=str(key)))


def write(model: LoadedModel, folder: Path) -> Path:
    save(model.model, folder, classes=model.bundle.classes, transform=model.bundle.transform)
    return folder


def other_weights(source: LoadedModel) -> LoadedModel:
    """The same model with its classes in another order of weights."""
    changed = loaded(small())
    head = changed.model.get_parameter("head.linear.weight")
    head.data.copy_(head.data.flip(0))
    return LoadedModel(changed.model, source.bundle)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(loaded(small()), tmp_path / "photos")


@pytest.fixture
def process(folder: Path) -> Iterator[Process]:
    running = Process(str(folder))
    yield running
    running.end()


def test_a_server_reloads_refuses_a_bad_model_and_drains(process: Process, folder: Path, tmp_path: Path) -> None:
    first, second = loaded(small()), other_weights(loaded(small()))
    truths = [Predictor(each, engine="eager")(photo()).labels[0] for each in (first, second)]
    assert truths[0] != truths[1]

    def label() -> str:
        answer = ask(process.url, "/v1/predict?top=1", photo())
        assert answer.status == 200, answer
        return str(answer.json["predictions"][0]["labels"][0])

    stop = threading.Event()
    seen: list[str] = []

    def ask_on() -> None:
        while not stop.is_set():
            seen.append(label())

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask_on) for _ in range(3)]
        try:
            wait_for(lambda: len(seen) > 5)
            # A model that is damaged is refused, and the old one answers on.
            shutil.move(folder, tmp_path / "kept")
            shutil.copytree(tmp_path / "kept", folder)
            (folder / "model.safetensors").write_bytes(b"broken")
            process.process.send_signal(signal.SIGHUP)
            wait_for(lambda: process.said("was not reloaded"))
            assert set(seen) == {truths[0]}
            # A good one takes its place while requests go on, and none is lost.
            shutil.rmtree(folder)
            write(second, folder)
            process.process.send_signal(signal.SIGHUP)
            wait_for(lambda: process.said("was reloaded"))
            count = len(seen)
            wait_for(lambda: len(seen) > count + 5)
        finally:
            stop.set()
        for each in asking:
            each.result()
    assert label() == truths[1]
    drain(process)


def drain(process: Process) -> None:
    """SIGTERM with 50 requests in flight: all that were accepted are answered, and the process exits with 0."""
    body, before = photo(rows=400, columns=400), done(process)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}"
    clients = [connect(process.url) for _ in range(50)]
    for client in clients:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
    idle = connect(process.url)
    wait_for(lambda: done(process) == before + 50)  # accepted, and most of them not answered yet
    process.process.send_signal(signal.SIGTERM)
    statuses = [client.makefile("rb").readline()[:12] for client in clients]
    assert statuses == [b"HTTP/1.1 200"] * 50
    assert process.process.wait(SECONDS) == 0
    for client in (*clients, idle):
        client.close()


def done(process: Process) -> int:
    """The predictions that were answered, or accepted by now."""
    text = ask(process.url, "/metrics").body.decode()
    found = re.findall(r'^(?:vitral_queue_images|vitral_requests_total\{route="/v1/predict",.*) ([0-9.]+)$', text, re.M)
    return sum(int(float(each)) for each in found)


def test_a_server_that_is_told_to_stop_does_not_wait_for_ever() -> None:
    assert Limits().drain_seconds + NOTICE < 10
    limits = Limits(drain_seconds=1.0, deadline=2 * SECONDS)
    with tiny_server(limits=limits) as server, held(server) as engine, connect(server.url) as client:
        client.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(photo()), photo()))
        assert engine.begun.wait(SECONDS)
        server.stop()
        assert engine.is_waiting


def test_a_server_that_stops_is_not_ready_and_refuses_new_requests() -> None:
    with tiny_server() as server:
        assert ask(server.url, "/readyz").status == 200
        server.service.admission.stopping = True
        answer = ask(server.url, "/readyz")
        assert (answer.status, answer.json) == (503, {"status": "stopping"})
        refused = ask(server.url, "/v1/predict", photo())
        assert (refused.status, refused.code) == (503, "serve.stopping")


@pytest.mark.slow
def test_workers_share_a_socket_and_a_lost_one_is_replaced(folder: Path) -> None:
    process = Process(str(folder), "--workers", "2")
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: ask(process.url, "/v1/predict", photo()), range(40)))
        assert {each.status for each in answers} == {200}
        children = subprocess.run(["pgrep", "-P", str(process.process.pid)], capture_output=True, text=True, check=True)
        first, second = map(int, children.stdout.split())
        wait_for(lambda: b'status="200"} 40' in ask(process.url, "/metrics").body)  # of both
        subprocess.run(["kill", "-9", str(first)], check=True)
        wait_for(lambda: process.said("another is started"))
        assert ask(process.url, "/v1/predict", photo()).status == 200
        (folder / "model.safetensors").write_bytes(b"broken")
        process.process.send_signal(signal.SIGHUP)
        wait_for(lambda: process.said("were not reloaded"))
        assert ask(process.url, "/v1/predict", photo()).status == 200
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(SECONDS) == 0
        assert not Path(f"/proc/{second}").exists()
    finally:
        process.end()


def test_what_does_not_arrive_and_what_is_not_http_is_answered(server: Server) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
    limits = Limits(body_seconds=0.2)
    with tiny_server(limits=limits) as hasty:
        for sent in (b"POST /v1/pre", b"", head + b"Content-Length: 1000\r\n\r\nslow"):
            answer = exchange(hasty, sent)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"application/problem+json" in answer
            assert b"serve.slow_upload" in answer
    answer = exchange(server, b"nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


def exchange(server: Server, sent: bytes) -> bytes:
    """All that comes back over a connection of its own."""
    with connect(server.url) as client:
        client.sendall(sent)
        return client.makefile("rb").read()


def test_connections_beyond_the_limit_are_refused() -> None:
    with (
        tiny_server(limits=Limits(connections=2)) as server,
        connect(server.url),
        connect(server.url),
        connect(server.url) as third,
    ):
        answer = third.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 1" in answer


def test_a_body_of_tiny_chunks_is_refused_and_one_of_larger_chunks_is_not(server: Server) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n"
    body, step = photo(rows=400, columns=400), 512
    pieces = [body[start : start + step] for start in range(0, len(body), step)]
    whole = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    for sent, status in ((whole, b"200"), (b"1\r\nx\r\n" * 100_000, b"400")):
        answer = exchange(server, head + b"Connection: close\r\n\r\n" + sent)
        assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"tiny chunks" in answer
    assert b"serve.bad_request" in answer


def test_a_request_with_two_lengths_is_refused(server: Server) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\nContent-Length: 5\r\n"
    tail = b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(server, head + tail)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"serve.bad_request" in answer
    assert answer.count(b"HTTP/1.1 ") == 1  # what a proxy may have taken for a second request is none


def test_a_client_that_does_not_take_its_answers_is_let_go() -> None:
    limits = Limits(deadline=0.5)
    with tiny_server(limits=limits) as server:
        with connect(server.url) as client:
            client.setblocking(False)
            ended = 0.0
            start = time.monotonic()
            while time.monotonic() - start < SECONDS and not ended:
                try:
                    client.send(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
                except BlockingIOError:
                    time.sleep(0.01)  # the server reads no more until its answers are taken
                except OSError:
                    ended = time.monotonic() - start
            assert ended
        assert ask(server.url, "/healthz").status == 200
