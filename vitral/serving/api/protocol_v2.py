"""The Open Inference Protocol, version 2, which KServe and Triton speak, with the extension for binary tensors.

A model has the inputs `image` (BYTES: encoded files) and `pixels` (FP32: what `bundle.transform` makes), of which a
request has one, and the outputs `logits`, `probabilities` and `label`, or `features`.
B images, C channels, H x W pixels, K classes, D width.
"""

import asyncio
import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.responses import JSONResponse, Response

from vitral import __version__
from vitral.core.activation import probabilities
from vitral.core.errors import ConfigError, ServeError, format_choices
from vitral.inference.engines.engine import FloatArray, OutputKind
from vitral.inference.predictor import restore_pixels
from vitral.serving.api.schema import PROBLEMS, InferResponse, Live, ModelMetadata, ModelReady, Ready, ServerMetadata
from vitral.serving.http.uploads import Upload, read_bytes
from vitral.serving.models.served_model import ServedModel
from vitral.serving.service import Lanes, Service

HEADER_LENGTH = "inference-header-content-length"
VERSIONS = ["1"]
IMAGE, PIXELS = "image", "pixels"
MAX_PARTS = (
    50_000  # lists, objects and keys of JSON: a batch of 32 images of 512 x 512 pixels, nested, has 49,249 lists
)
MAX_TENSORS, MAX_SIDES = 16, 16
ImageArray = NDArray[np.float32]


TENSOR_SCHEMA = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string", "enum": [IMAGE, PIXELS]},
        "shape": {"type": "array", "items": {"type": "integer"}, "example": [1]},
        "datatype": {"type": "string", "enum": ["BYTES", "FP32"]},
        "parameters": {"type": "object"},
        "data": {"type": "array", "items": {}},
    },
}
OUTPUT_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
}
REQUEST_SCHEMA = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object"},
        "inputs": {"type": "array", "items": TENSOR_SCHEMA},
        "outputs": {"type": "array", "items": OUTPUT_SCHEMA},
    },
}
BINARY_BODY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Ready, "description": "Loading or stopping."}}


class Tensor(BaseModel):
    """An input of a request."""

    model_config = ConfigDict(strict=True)

    name: str
    shape: list[int] = Field(max_length=MAX_SIDES)
    datatype: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    data: Any = None


class RequestedOutput(BaseModel):
    """An output that is asked for."""

    model_config = ConfigDict(strict=True)

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class InferRequest(BaseModel):
    """The JSON of a request."""

    model_config = ConfigDict(strict=True)

    id: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    inputs: list[Tensor] = Field(max_length=MAX_TENSORS)
    outputs: list[RequestedOutput] = Field(default_factory=list, max_length=MAX_TENSORS)


class Output(NamedTuple):
    """An output of a response."""

    name: str
    datatype: Literal["FP32", "BYTES"]
    shape: tuple[int, ...]
    values: FloatArray | list[bytes]


def routes(service: Service) -> APIRouter:
    """The routes of a service."""
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], responses=PROBLEMS)

    @router.get("", response_model=ServerMetadata, summary="The server")
    async def server() -> Response:
        """The name and the extensions of the server."""
        return JSONResponse({"name": "vitral", "version": __version__, "extensions": ["binary_tensor_data"]})

    @router.get("/health/live", response_model=Live, summary="Whether it runs")
    async def live() -> Response:
        """200 as long as the process answers."""
        return JSONResponse({"live": True})

    @router.get("/health/ready", response_model=Ready, responses=NOT_READY, summary="Whether it is ready")
    async def ready() -> Response:
        """200 when requests are answered, else 503."""
        is_ready = service.is_ready and not service.admission.stopping
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @router.get("/models/{name}", response_model=ModelMetadata, summary="A model")
    @router.get("/models/{name}/versions/{version}", include_in_schema=False)
    async def metadata(name: str, version: str = "1") -> Response:
        """The inputs and outputs of a model."""
        return JSONResponse(describe(find(service, name, version).model))

    @router.get("/models/{name}/ready", response_model=ModelReady, summary="Whether a model is ready")
    @router.get("/models/{name}/versions/{version}/ready", include_in_schema=False)
    async def model_ready(name: str, version: str = "1") -> Response:
        """200 when the model answers."""
        find(service, name, version)
        return JSONResponse({"name": name, "ready": True})

    @router.post(
        "/models/{name}/infer",
        openapi_extra=body(),
        response_model=InferResponse,
        responses=BINARY_BODY,
        summary="Infer",
    )
    @router.post("/models/{name}/versions/{version}/infer", include_in_schema=False)
    async def infer(request: Request, name: str, version: str = "1") -> Response:
        """The outputs for a batch: `image` of BYTES, in JSON as base64, or `pixels` of FP32."""
        lanes = find(service, name, version)
        service.admission.check()
        asked, binary = await read_request(request, service)
        outputs = await compute(service, lanes, asked, binary)
        return respond(lanes.model, asked, outputs)

    return router


def body() -> dict[str, Any]:
    """The body of a request, with a picture that the server can read as the example."""
    file = BytesIO()
    Image.linear_gradient("L").resize((64, 64)).save(file, "png")
    data = [base64.b64encode(file.getvalue()).decode()]
    example = {"inputs": [{"name": IMAGE, "shape": [1], "datatype": "BYTES", "data": data}]}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": REQUEST_SCHEMA, "example": example}},
        }
    }


def find(service: Service, name: str, version: str) -> Lanes:
    """A model by name and version, of which there is one."""
    if version not in VERSIONS:
        message = f"there is no version {version[:20]!r} of this model"
        raise ServeError(message, code="serve.unknown_model", where="version", hint="ask for version 1, or for none")
    return service.find(name)


def describe(model: ServedModel) -> dict[str, object]:
    """The metadata of a model."""
    height, width, channels = model.predictor.pixel_shape
    return {
        "name": model.name,
        "versions": VERSIONS,
        "platform": f"vitral_{model.engine}",
        "inputs": [
            {"name": IMAGE, "datatype": "BYTES", "shape": [-1]},
            {"name": PIXELS, "datatype": "FP32", "shape": [-1, channels, height, width]},
        ],
        "outputs": [
            {"name": name, "datatype": "BYTES" if name == "label" else "FP32", "shape": shape}
            for name, shape in output_shapes(model).items()
        ],
    }


def output_shapes(model: ServedModel) -> dict[str, list[int]]:
    """The outputs that a model has, with -1 for the batch."""
    classes = len(model.bundle.classes)
    if not classes:
        return {"features": [-1, model.predictor.width]}
    return {"logits": [-1, classes], "probabilities": [-1, classes], "label": [-1]}


async def read_request(request: Request, service: Service) -> tuple[InferRequest, bytes]:
    """The JSON of a request, and the binary tensors behind it."""
    if request.headers.get("content-encoding", "identity") != "identity":
        message, hint = "compressed requests are not read", "send it without compression"
        raise ServeError(message, code="serve.wrong_type", where="Content-Encoding", hint=hint)
    body = await read_bytes(request, request.state.upload, service.limits)
    given = request.headers.get(HEADER_LENGTH, "")
    length = int(given) if given.isascii() and given.isdecimal() and len(given) < 12 else len(body)
    if (given and not given.isdecimal()) or length > len(body):
        message = f"expected a length of at most {len(body)} bytes, got {given[:20]!r}"
        raise bad_tensor(message, "Inference-Header-Content-Length")
    if sum(body.count(each, 0, length) for each in (b"[", b"{", b":")) > MAX_PARTS:  # before it is parsed
        raise bad_tensor(f"expected JSON of at most {MAX_PARTS} lists, objects and keys", "body")
    try:
        return InferRequest.model_validate(from_json(body[:length], allow_inf_nan=False)), body[length:]
    except ValidationError as error:
        first = error.errors()[0]
        raise bad_tensor(first["msg"], ".".join(map(str, first["loc"]))) from None
    except ValueError as error:
        raise bad_tensor(f"not JSON: {error}", "body") from None


def bad_tensor(message: str, where: str) -> ConfigError:
    """The error of a request that does not follow the protocol."""
    hint = "see GET /v2/models/NAME for the inputs and outputs"
    return ConfigError(message, code="config.bad_tensor", where=where, hint=hint)


async def compute(service: Service, lanes: Lanes, asked: InferRequest, binary: bytes) -> dict[str, Output]:
    """The outputs that are asked for, by name."""
    model = lanes.model
    known = output_shapes(model)
    wanted = dict.fromkeys([each.name for each in asked.outputs] or known)
    if unknown := [name for name in wanted if name not in known]:
        raise bad_tensor(f"expected {format_choices(known)}, got {unknown[0][:60]!r}", "outputs")
    tensor, data = only_input(asked.inputs, binary)
    kind: OutputKind = model.output
    if tensor.name == IMAGE:
        rows = await service.outputs(lanes, kind, read_uploads(tensor, data, service.limits.images))
    else:
        rows = await run_pixels(service, lanes, kind, read_pixels(tensor, data, model, service.limits.images))
    numbers = np.stack(rows)  # (B, K) or (B, D)
    return {name: make_output(name, numbers, model) for name in wanted}


def make_output(name: str, numbers: FloatArray, model: ServedModel) -> Output:
    """One output of the logits (B, K) or features (B, D)."""
    if name == "label":
        labels = [model.bundle.classes[best].encode() for best in numbers.argmax(axis=1)]
        return Output(name, "BYTES", (len(labels),), labels)
    values = probabilities(numbers, model.bundle.activation) if name == "probabilities" else numbers
    return Output(name, "FP32", numbers.shape, values)


def only_input(inputs: Sequence[Tensor], binary: bytes) -> tuple[Tensor, bytes | None]:
    """The input, and its bytes if they are not in the JSON."""
    if len(inputs) != 1 or inputs[0].name not in {IMAGE, PIXELS}:
        got = ", ".join(each.name[:40] for each in inputs[:3]) or "none"
        raise bad_tensor(f"expected one input, {IMAGE} or {PIXELS}, got {got}", "inputs")
    tensor = inputs[0]
    expected = "BYTES" if tensor.name == IMAGE else "FP32"
    if tensor.datatype != expected:
        raise bad_tensor(f"expected {expected}, got {tensor.datatype[:20]!r}", "inputs.0.datatype")
    size = tensor.parameters.get("binary_data_size")
    if (size is None) != (not binary) or (size is not None and (tensor.data is not None or size != len(binary))):
        got = f"got {str(size)[:20]} and {len(binary)} bytes"
        message = f"expected data, or a binary_data_size and as many bytes behind the JSON, {got}"
        raise bad_tensor(message, "inputs.0.parameters")
    return tensor, None if size is None else binary


def read_uploads(tensor: Tensor, data: bytes | None, most: int) -> list[Upload]:
    """Encoded images: each with its length in front, or in JSON as base64."""
    count = count_images(tensor.shape, most)
    if data is not None:
        files = split_bytes(data, count)
    elif isinstance(tensor.data, list):
        files = [decode_base64(each) for each in flatten(tensor.data, count)]
    else:
        raise bad_tensor("expected a list of texts, images as base64", "inputs.0.data")
    if len(files) != count:
        raise bad_tensor(f"expected {count} images, as the shape says, got {len(files)}", "inputs.0.data")
    return [Upload(IMAGE, each) for each in files]


def flatten(data: Sequence[Any], most: int) -> list[Any]:
    """The first values of a list, or of a list of lists, and one more if there are more than `most`."""
    values = (value for each in data for value in (each if isinstance(each, list) else [each]))
    return list(islice(values, most + 1))


def decode_base64(text: object) -> bytes:
    """The bytes of a value in JSON."""
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise bad_tensor("expected texts, images as base64", "inputs.0.data") from None


def split_bytes(data: bytes, most: int) -> list[bytes]:
    """The first elements of a binary BYTES tensor, and one more if there are more than `most`."""
    found, start = list[bytes](), 0
    while start < len(data) and len(found) <= most:
        (length,) = struct.unpack_from("<I", data, start) if start + 4 <= len(data) else (2**32,)
        if start + 4 + length > len(data):
            raise bad_tensor("an element is longer than the data", "inputs.0.data")
        found.append(data[start + 4 : start + 4 + length])
        start += 4 + length
    return found


def count_images(shape: Sequence[int], most: int) -> int:
    """The images of a tensor of this shape, of which a request may have so many."""
    if not shape or min(shape) < 1:
        raise bad_tensor(f"expected a shape of at least one image, got {str(shape)[:60]}", "inputs.0.shape")
    images = math.prod(shape)
    if images > most:
        message, hint = f"a request may have {most} images", "send the rest in another request"
        raise ServeError(message, code="serve.too_many_images", where="inputs.0.shape", hint=hint)
    return images


def read_pixels(tensor: Tensor, data: bytes | None, model: ServedModel, most: int) -> ImageArray:
    """Images (B, C, H, W) as the model takes them, which may be in float32."""
    height, width, channels = model.predictor.pixel_shape
    shape = tensor.shape
    if shape[1:] != [channels, height, width]:
        raise bad_tensor(
            f"expected a shape [B, {channels}, {height}, {width}], got {str(shape)[:60]}", "inputs.0.shape"
        )
    count = count_images(shape[:1], most) * channels * height * width
    if data is not None:
        values = np.frombuffer(data, "<f4") if len(data) == 4 * count else np.empty(0, np.float32)
    else:
        try:
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused below
                values = np.asarray(tensor.data, dtype=np.float32).ravel()
        except (ValueError, TypeError, OverflowError):
            raise bad_tensor("expected a list of numbers", "inputs.0.data") from None
    if len(values) != count:
        raise bad_tensor(f"expected {count} numbers, as the shape says, got {len(values)}", "inputs.0.data")
    if not np.isfinite(values).all():
        raise bad_tensor("expected finite numbers", "inputs.0.data")
    return values.reshape(shape).astype(np.float32)


async def run_pixels(service: Service, lanes: Lanes, kind: OutputKind, images: ImageArray) -> list[FloatArray]:
    """The outputs of images (B, C, H, W): by the engine if they are 8-bit images, else by the model itself."""
    import torch

    tensors = list(torch.from_numpy(images))
    model = lanes.model
    try:
        pixels = await asyncio.to_thread(restore_pixels, tensors, model.bundle.preprocessing)  # (B, H, W, C)
    except ConfigError as error:
        if model.predictor.model is None:
            raise bad_tensor(error.message, "inputs.0.data") from None
    else:
        return await service.outputs_of_pixels(lanes, kind, list(pixels))
    with service.admission.accept(len(tensors), lanes.batchers[kind].cost):
        rows = await service.lane.run_in_turn(lambda: model.run_tensors(tensors), service.limits.wait_seconds)
    if not np.isfinite(rows).all():
        raise bad_tensor("expected numbers of which the model's outputs are finite", "inputs.0.data")
    return list(rows)


def respond(model: ServedModel, asked: InferRequest, outputs: Mapping[str, Output]) -> Response:
    """The response, with those outputs in binary for which that was asked."""
    everything = asked.parameters.get("binary_data_output") is True
    parameters = {each.name: each.parameters for each in asked.outputs}
    described, tail = [], b""
    for name, output in outputs.items():
        given = parameters.get(name, {})
        shown = classify(output, model, given["classification"]) if "classification" in given else output
        fields: dict[str, object] = {"name": name, "datatype": shown.datatype, "shape": list(shown.shape)}
        if given.get("binary_data", everything) is True:
            data = to_binary(shown)
            fields["parameters"] = {"binary_data_size": len(data)}
            tail += data
        else:
            fields["data"] = to_json_values(shown)
        described.append(fields)
    answer = {"model_name": model.name, "model_version": VERSIONS[0], "id": asked.id, "outputs": described}
    text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace")
    if not tail:
        return Response(text, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(text + tail, media_type="application/octet-stream", headers=headers)


def classify(output: Output, model: ServedModel, count: object) -> Output:
    """The largest values of an output as `value:index:label`, as Triton's classification extension has it."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or isinstance(output.values, list):
        raise bad_tensor(f"expected a number of classes, got {str(count)[:20]!r}", "outputs")
    names = model.bundle.classes or tuple("" for _ in range(output.shape[1]))
    count = min(count, output.shape[1])
    order = np.argsort(-output.values, axis=1, kind="stable")[:, :count]  # (B, count)
    rows = zip(output.values, order, strict=True)
    texts = [f"{row[best]:f}:{best}:{names[best]}".encode() for row, chosen in rows for best in chosen]
    return Output(output.name, "BYTES", (len(order), count), texts)


def to_binary(output: Output) -> bytes:
    """The values of an output as bytes."""
    if isinstance(output.values, list):
        return b"".join(struct.pack("<I", len(each)) + each for each in output.values)
    return output.values.astype("<f4").tobytes()


def to_json_values(output: Output) -> Sequence[object]:
    """The values of an output in row-major order."""
    if isinstance(output.values, list):
        return [each.decode("utf-8", "replace") for each in output.values]
    return output.values.astype(np.float64).ravel().tolist()
