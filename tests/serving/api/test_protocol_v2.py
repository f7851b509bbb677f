"""The Open Inference Protocol, as Triton's own client speaks it."""

import base64
import json
import struct
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.serving.api.test_v1 import model_of
from tests.serving.client import Answer, ask, photo
from vitral.inference.predictor import Predictor
from vitral.serving.server import Server

http = pytest.importorskip("tritonclient.http")


def client(server: Server) -> Any:
    return http.InferenceServerClient(urlsplit(server.url).netloc)


def truth(server: Server, *photos: bytes) -> Any:
    predictor = Predictor(model_of(server, "vit"), engine="eager")
    pixels = np.stack([predictor.bundle.preprocessing.pixels(each, "image") for each in photos])
    return predictor.logits(pixels), predictor.probabilities(pixels)


def image_input(*photos: bytes, binary: bool = True) -> Any:
    tensor = http.InferInput("image", [len(photos)], "BYTES")
    content = photos if binary else [base64.b64encode(each) for each in photos]
    tensor.set_data_from_numpy(np.array(content, dtype=object), binary_data=binary)
    return tensor


def test_the_client_sees_a_server_and_its_models(server: Server) -> None:
    triton = client(server)
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("vit")
    assert not triton.is_model_ready("vitt")
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    metadata = triton.get_model_metadata("vit")
    assert [(each["name"], each["datatype"], each["shape"]) for each in metadata["inputs"]] == [
        ("image", "BYTES", [-1]),
        ("pixels", "FP32", [-1, 3, 32, 48]),
    ]
    assert [each["name"] for each in metadata["outputs"]] == ["logits", "probabilities", "label"]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_files_give_the_outputs_of_the_predictor(server: Server, binary_in: bool, binary_out: bool) -> None:
    photos = photo(0), photo(1)
    outputs = [http.InferRequestedOutput(name, binary_data=binary_out) for name in ("logits", "label", "probabilities")]
    found = client(server).infer("vit", [image_input(*photos, binary=binary_in)], outputs=outputs, request_id="mine")
    logits, chances = truth(server, *photos)
    np.testing.assert_allclose(found.as_numpy("logits"), logits, atol=1e-5)
    np.testing.assert_allclose(found.as_numpy("probabilities"), chances, atol=1e-6)
    labels = [each.decode() if isinstance(each, bytes) else each for each in found.as_numpy("label")]
    assert labels == ["abcd"[best] for best in logits.argmax(axis=1)]
    assert found.get_response()["id"] == "mine"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.013])  # as of an 8-bit image, and as of none
def test_tensors_give_the_outputs_of_the_model(server: Server, binary: bool, shift: float) -> None:
    loaded = model_of(server, "vit")
    images = loaded.bundle.transform(photo())[None] + shift
    tensor = http.InferInput("pixels", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images.numpy(), binary_data=binary)
    found = client(server).infer("vit", [tensor]).as_numpy("logits")
    np.testing.assert_allclose(found, loaded.model(images).detach().numpy(), atol=1e-4)


def test_classes_are_named_as_the_classification_extension_has_it(server: Server) -> None:
    output = http.InferRequestedOutput("probabilities", class_count=2)
    found = client(server).infer("vit", [image_input(photo())], outputs=[output]).as_numpy("probabilities")
    _, (chances,) = truth(server, photo())
    best = np.argsort(-chances)[:2]
    assert found.shape == (1, 2)
    assert [each.decode() for each in found[0]] == [f"{chances[each]:f}:{each}:{'abcd'[each]}" for each in best]


def test_a_model_without_classes_has_features(server: Server) -> None:
    found = client(server).infer("headless", [image_input(photo())]).as_numpy("features")
    assert found.shape == (1, 32)


def test_tensors_of_a_model_without_classes_give_its_features(server: Server) -> None:
    loaded = model_of(server, "headless")
    images = loaded.bundle.transform(photo())[None] + 0.013  # as of no 8-bit image
    tensor = http.InferInput("pixels", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images.numpy())
    found = client(server).infer("headless", [tensor]).as_numpy("features")
    np.testing.assert_allclose(found, loaded.model(images).detach().numpy(), atol=1e-4)


def test_the_client_understands_an_error(server: Server) -> None:
    with pytest.raises(http.InferenceServerException) as caught:
        client(server).infer("vit", [image_input(b"no image")])
    assert caught.value.status() == "422"
    assert "expected an image" in caught.value.message()


def infer(server: Server, body: Any, path: str = "/v2/models/vit/infer", **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(server.url, path, content, {"Content-Type": "application/json", **headers})


def tensor(**changes: Any) -> dict[str, Any]:
    usual = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [base64.b64encode(photo()).decode()]}
    return {"inputs": [usual | changes]}


PIXELS = {"name": "pixels", "datatype": "FP32", "shape": [1, 3, 32, 48], "data": [0.0] * 4608}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"inputs": NaN}',
        {"inputs": []},
        {"inputs": [tensor()["inputs"][0]] * 2},
        tensor(name="photo"),
        tensor(datatype="FP32"),
        tensor(shape=[2]),
        tensor(shape=[]),
        tensor(shape=["1"]),
        tensor(shape=1),
        tensor(data=[7]),
        tensor(data="text"),
        tensor(data=None),
        tensor(data=["not base64!"]),
        tensor(data=[], shape=[0]),
        tensor(parameters={"binary_data_size": 5}),
        json.dumps(tensor() | {"parameters": {"more": [[]] * 50_001}}, separators=(",", ":")).encode(),
        tensor() | {"id": ":" * 50_001},  # as many keys have, which are counted before they are parsed
        tensor(shape=[2**20] * 2000),  # whose product takes seconds
        tensor(shape=["x"] * 2000),
        tensor(shape=[-1, -1]),
        tensor(data=[""] * 2000),
        tensor() | {"outputs": [{"name": "logits"}] * 2000},
        tensor() | {"outputs": [{"name": "features"}]},
        tensor() | {"outputs": [{"name": "label", "parameters": {"classification": 2}}]},
        tensor() | {"outputs": [{"name": "logits", "parameters": {"classification": "many"}}]},
        tensor(**PIXELS | {"data": [0.0]}),
        tensor(**PIXELS | {"data": ["x"] * 4608}),
        tensor(**PIXELS | {"data": [[[1.0], [2.0, 3.0]]]}),
        tensor(**PIXELS | {"data": [1e300] * 4608}),
        tensor(**PIXELS | {"data": [3e38, -3e38] * 2304}),
        tensor(**PIXELS | {"shape": [1, 3, 48, 32]}),
        tensor(**PIXELS | {"shape": [-1, 3, 32, 48]}),
    ],
)
def test_a_request_that_does_not_follow_the_protocol_is_refused(server: Server, body: Any) -> None:
    answer = infer(server, body)
    assert (answer.status, answer.code) == (422, "config.bad_tensor")
    assert answer.json["error"] == answer.json["detail"]


@pytest.mark.parametrize(
    ("length", "tail"),
    [("x", b""), ("-1", b""), ("999999", b""), (None, b"\0\0\0"), (None, struct.pack("<I", 9) + b"short")],
)
def test_binary_data_that_is_cut_is_refused(server: Server, length: str | None, tail: bytes) -> None:
    one = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}}
    text = json.dumps({"inputs": [one]}).encode()
    answer = infer(server, text + tail, **{"Inference-Header-Content-Length": length or str(len(text))})
    assert answer.code == "config.bad_tensor"


def test_other_models_versions_and_encodings_are_refused(server: Server) -> None:
    assert infer(server, tensor(), "/v2/models/vit/versions/1/infer").status == 200
    assert infer(server, tensor(), "/v2/models/vit/versions/2/infer").code == "serve.unknown_model"
    assert infer(server, tensor(), "/v2/models/vitt/infer").code == "serve.unknown_model"
    assert infer(server, tensor(), **{"Content-Encoding": "gzip"}).code == "serve.wrong_type"
    many = tensor(data=[base64.b64encode(photo()).decode()] * 4, shape=[4])
    for refused in (many, tensor(shape=[10**30])):
        assert infer(server, refused).code == "serve.too_many_images"
