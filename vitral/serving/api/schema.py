"""The answers of the API, as OpenAPI describes them, with examples."""

from http import HTTPStatus
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from vitral.serving.http.problems import MEDIA_TYPE

REQUEST_ID = "5f0c9d3c7a4b4f0e9d2f6f1f0f6f7a11"


class Answer(BaseModel):
    """A JSON answer."""

    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """An error, as RFC 9457 has it, with a stable code."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = Field(description="what is wrong")
    code: str = Field(description="stable, for programs")
    field: str = Field(description="of the request; empty where it is about none")
    hint: str = Field(description="what to do")
    request_id: str
    error: str = Field(description="the detail, where clients of the Open Inference Protocol look for it")


class Refusal(NamedTuple):
    """When a status is sent, and an example of it."""

    description: str
    code: str
    detail: str
    field: str
    hint: str

    def response(self, status: int) -> dict[str, Any]:
        """Its part of the description of a route."""
        example = Problem(
            title=HTTPStatus(status).phrase,
            status=status,
            detail=self.detail,
            code=self.code,
            field=self.field,
            hint=self.hint,
            request_id=REQUEST_ID,
            error=self.detail,
        )
        schema = {"$ref": "#/components/schemas/Problem"}
        return {
            "description": self.description,
            "content": {MEDIA_TYPE: {"schema": schema, "example": example.model_dump()}},
        }


REFUSALS = {
    400: Refusal(
        "The request cannot be read.",
        "serve.bad_request",
        "the form cannot be read: it ends before its last boundary",
        "body",
        "use an HTTP library to build the form",
    ),
    401: Refusal(
        "The token is missing or wrong.",
        "serve.unauthorized",
        "the request has no token",
        "Authorization",
        "send the header Authorization: Bearer TOKEN",
    ),
    403: Refusal(
        "A page of another origin sent the request.",
        "serve.wrong_origin",
        "a page of another origin sent this request",
        "Origin",
        "start the server with --cors ORIGIN to allow it",
    ),
    404: Refusal(
        "There is no such model or route.",
        "serve.unknown_model",
        "there is no model 'dogs'",
        "model",
        "did you mean 'photos'?",
    ),
    405: Refusal(
        "The route has other methods.",
        "serve.wrong_method",
        "Method Not Allowed",
        "path",
        "see /docs for the methods of this route",
    ),
    408: Refusal(
        "The request took too long to arrive.",
        "serve.slow_upload",
        "the request did not arrive within 10 s",
        "body",
        "send a smaller image, or over a faster connection",
    ),
    413: Refusal(
        "The request is too large.",
        "serve.too_large",
        "the request has more than 10,000,000 bytes",
        "body",
        "send a smaller image",
    ),
    415: Refusal(
        "The content type is none of those above.",
        "serve.wrong_type",
        "expected multipart/form-data or an image type, got 'text/html'",
        "Content-Type",
        "send the image as the body with a Content-Type such as image/jpeg, or as a form in a field image",
    ),
    421: Refusal(
        "The Host header names another server.",
        "serve.wrong_host",
        "the Host header names another server",
        "Host",
        "use the server's address, or start it with --allow-host",
    ),
    422: Refusal(
        "An image or a parameter is wrong.",
        "data.unknown_format",
        "expected an image, found text beginning 'hello'",
        "image",
        "use JPEG, PNG or WEBP",
    ),
    429: Refusal(
        "Too many images are waiting. See Retry-After.",
        "serve.queue_full",
        "64 images are waiting, and 64 may",
        "",
        "try again later",
    ),
    503: Refusal(
        "The server is too busy to answer in time, or it is stopping. See Retry-After.",
        "serve.queue_timeout",
        "the waiting images will take 6 s",
        "",
        "try again later",
    ),
}
PROBLEMS: dict[int | str, dict[str, Any]] = {status: each.response(status) for status, each in REFUSALS.items()}


class ImagePrediction(Answer):
    """The most probable classes of one image."""

    name: str = Field(examples=["cat.jpg"])
    labels: list[str] = Field(examples=[["cat", "dog"]])
    scores: list[float] = Field(examples=[[0.97, 0.02]])


class Predictions(Answer):
    """Predictions in the order of the images."""

    model: str = Field(examples=["photos"])
    engine: str = Field(examples=["openvino"])
    predictions: list[ImagePrediction]
    request_id: str = Field(examples=[REQUEST_ID])


class ImageFeatures(Answer):
    """The features of one image."""

    name: str = Field(examples=["cat.jpg"])
    features: list[float] = Field(examples=[[0.118, -1.302, 0.547]])


class FeatureVectors(Answer):
    """Features in the order of the images."""

    model: str = Field(examples=["photos"])
    engine: str = Field(examples=["openvino"])
    width: int = Field(examples=[3])
    features: list[ImageFeatures]
    request_id: str = Field(examples=[REQUEST_ID])


class AttentionMaps(Answer):
    """The attention of the query to each patch, of every layer and head, in row-major order."""

    shape: list[int] = Field(description="layers, heads, patches", examples=[[1, 1, 4]])
    data: list[float] = Field(examples=[[0.41, 0.12, 0.08, 0.39]])


class ExplanationMaps(Answer):
    """Maps over the patches of one image, row by row. Maps that were not asked for are left out."""

    model: str = Field(examples=["photos"])
    grid: list[int] = Field(description="rows and columns of patches", examples=[[2, 2]])
    box: list[float] = Field(
        description="left, top, right and bottom of the part that the grid covers, as fractions of the whole photo",
        examples=[[0.125, 0.0, 0.875, 1.0]],
    )
    layers: int = Field(examples=[1])
    heads: int = Field(examples=[1])
    attention: AttentionMaps = Field(
        default=AttentionMaps(shape=[0, 0, 0], data=[]),
        description="if asked for",
        examples=[{"shape": [1, 1, 4], "data": [0.41, 0.12, 0.08, 0.39]}],
    )
    rollout: list[float] = Field(default=[], description="if asked for", examples=[[0.31, 0.22, 0.19, 0.28]])
    relevance: list[float] = Field(default=[], description="if asked for", examples=[[0.021, 0.004, 0.0, 0.017]])
    label: str = Field(description="the class that relevance is about; empty without classes", examples=["cat"])
    query: str = Field(description="cls, or the index of a patch", examples=["cls"])
    request_id: str = Field(examples=[REQUEST_ID])


class ModelSummary(Answer):
    """A model of this server."""

    name: str = Field(examples=["photos"])
    classes: int = Field(examples=[2])
    image_size: list[int] = Field(description="height and width in pixels", examples=[[224, 224]])
    engine: str = Field(examples=["openvino"])
    explain: bool = Field(description="whether /v1/explain has maps of it", examples=[True])
    layers: int = Field(examples=[12])
    heads: int = Field(examples=[6])
    parameters: int = Field(examples=[21666434])


class ModelList(Answer):
    """All models; the first is the default."""

    models: list[ModelSummary]


class ModelDetails(ModelSummary):
    """A model, its classes, its preprocessing and its card."""

    title: str = Field(description="the architecture", examples=["ViT-S/16 at 224"])
    task: str = Field(examples=["classify"])
    class_names: list[str] = Field(examples=[["cat", "dog"]])
    preprocessing: dict[str, Any] = Field(examples=[{"image_size": [224, 224]}])
    card: str = Field(description="Markdown", examples=["# photos"])


class Health(Answer):
    """Whether the server runs."""

    status: Literal["ok", "ready", "stopping", "loading"]


class ServerMetadata(Answer):
    """The server, as the Open Inference Protocol has it."""

    name: str = Field(examples=["vitral"])
    version: str
    extensions: list[str] = Field(examples=[["binary_tensor_data"]])


class Live(Answer):
    """Whether the server runs."""

    live: bool


class Ready(Answer):
    """Whether the server answers."""

    ready: bool


class ModelReady(Answer):
    """Whether a model answers."""

    name: str = Field(examples=["photos"])
    ready: bool


class TensorMetadata(Answer):
    """An input or an output of a model."""

    name: str = Field(examples=["image"])
    datatype: Literal["BYTES", "FP32"]
    shape: list[int] = Field(description="-1 for the number of images", examples=[[-1]])


class ModelMetadata(Answer):
    """The inputs and outputs of a model."""

    name: str = Field(examples=["photos"])
    versions: list[str] = Field(examples=[["1"]])
    platform: str = Field(examples=["vitral_openvino"])
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(Answer):
    """An output. Its values are in `data`, or behind the JSON where binary data was asked for."""

    name: str = Field(examples=["label"])
    datatype: Literal["BYTES", "FP32"]
    shape: list[int] = Field(examples=[[1]])
    data: list[Any] = Field(default=[], examples=[["cat"]])
    parameters: dict[str, Any] = Field(default={}, examples=[{}])


class InferResponse(Answer):
    """The outputs for a batch."""

    model_name: str = Field(examples=["photos"])
    model_version: str = Field(examples=["1"])
    id: str = Field(examples=[""])
    outputs: list[OutputTensor]
