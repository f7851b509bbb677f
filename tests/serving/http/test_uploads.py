"""Images out of forms, without the disk."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.errors import raises
from tests.serving.client import Answer, ask, connect, form, photo, wait_for
from vitral.serving.config import Limits
from vitral.serving.http.uploads import ImageForm, Upload, UploadMemory, shown_name
from vitral.serving.server import Server


def parse(body: bytes, step: int, most: int = 3) -> list[Upload]:
    images = ImageForm(b"cut", most)
    for start in range(0, len(body), step):
        images.write(body[start : start + step])
    return images.finish()


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3), st.integers(1, 60))
def test_a_form_gives_its_images_however_it_is_cut(contents: list[bytes], step: int) -> None:
    contents = [each.replace(b"--cut", b"") for each in contents]
    body, _ = form(*(("image", f"{number}.jpg", data) for number, data in enumerate(contents)))
    found = parse(body, step)
    assert [each.data for each in found] == contents
    assert [each.name for each in found] == [f"{number}.jpg" for number in range(len(contents))]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("serve.bad_request", b""),
        ("serve.bad_request", b"--cut\r\nno header\r\n\r\n\r\n--cut--\r\n"),
        ("serve.bad_request", form(("image", "a.jpg", b"x"))[0][:-8]),
        ("serve.bad_request", b"--cut\r\nX: " + b"y" * 5000 + b"\r\n\r\n\r\n--cut--\r\n"),
        ("serve.no_image", form(("file", "a.jpg", b"x"))[0]),
        ("serve.no_image", b"--cut\r\nX-Nothing: 1\r\n\r\nx\r\n--cut--\r\n"),
        ("serve.too_many_images", form(*[("image", "a.jpg", b"x")] * 4)[0]),
    ],
)
def test_a_form_that_is_none_is_refused(code: str, body: bytes) -> None:
    with raises(code):
        parse(body, 7)


def test_a_name_is_only_shown() -> None:
    assert shown_name(b"../../etc/passwd") == "passwd"
    assert shown_name(b"C:\\photos\\cat one.jpg") == "cat one.jpg"
    assert shown_name(b"a\0b\r\nc") == "a_b__c"
    assert shown_name(b"") == "image"
    assert len(shown_name(b"x" * 9999)) == 200
    assert shown_name("猫.jpg".encode()) == "猫.jpg"


def test_uploads_share_one_memory() -> None:
    memory = UploadMemory(Limits(upload=60, uploads=100))
    with memory.request() as one, memory.request() as two:
        one.grow(60)
        with raises("serve.too_large", 60):
            one.grow(1)
        with raises("serve.uploads_full"):
            two.grow(40)
    assert memory.bytes == 0


def post(server: Server, body: bytes, kind: str) -> Answer:
    return ask(server.url, "/v1/predict", body, {"Content-Type": kind})


def test_a_body_is_refused_by_its_length_and_while_it_arrives(server: Server) -> None:
    assert post(server, b"x" * 200_001, "image/jpeg").code == "serve.too_large"
    with connect(server.url) as client:  # chunked: the length is not announced
        client.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n")
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413")
    wait_for(lambda: server.service.memory.bytes == 0)


def test_other_types_and_empty_bodies_are_refused(server: Server) -> None:
    assert post(server, photo(), "application/json").code == "serve.wrong_type"
    assert post(server, photo(), "").code == "serve.wrong_type"
    assert post(server, b"", "image/png").code == "serve.no_image"
    assert post(server, b"", "multipart/form-data").code == "serve.bad_request"
    body, headers = form(*[("image", "a.jpg", photo())] * 4)
    assert ask(server.url, "/v1/predict", body, headers).code == "serve.too_many_images"
