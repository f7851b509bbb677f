"""Vitral's own routes: predict, explain, features, models.  L layers, H heads, N patches, R x S grid."""

import asyncio
from io import BytesIO
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from PIL import Image
from starlette.responses import JSONResponse, Response

from vitral.core.errors import ConfigError, ServeError
from vitral.explanation.explanation import Array, Photo
from vitral.serving.api.schema import (
    PROBLEMS,
    ExplanationMaps,
    FeatureVectors,
    ModelDetails,
    ModelList,
    ModelSummary,
    Predictions,
)
from vitral.serving.batching.decode_pool import Cropped
from vitral.serving.http.uploads import Upload
from vitral.serving.models.served_model import ServedModel
from vitral.serving.service import Lanes, Service

DIGITS = 6  # after the point, of attention, which sums to one
BINARY = {"schema": {"type": "string", "format": "binary"}}
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": BINARY}}}
BODY = {
    "requestBody": {
        "required": True,
        "description": "One or more images as a form, or one image as the body.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
                    },
                }
            },
            "image/jpeg": BINARY,
            "image/png": BINARY,
            "image/webp": BINARY,
            "application/octet-stream": BINARY,
        },
    }
}
ModelName = Annotated[str, Query(description="The name of a model; by default the first.", max_length=200)]
Top = Annotated[int, Query(description="Number of classes to return.", ge=1, le=1000)]
MAPS_HELP = "One or more of attention, rollout and relevance, with commas."
LABEL_HELP = "A class for relevance; by default the predicted one."
MAX_LABEL = 1000  # characters


def routes(service: Service) -> APIRouter:
    """The routes of a service."""
    router = APIRouter(prefix="/v1", responses=PROBLEMS)
    add_predict(router, service)
    add_features(router, service)
    add_explain(router, service)
    add_models(router, service)
    return router


def add_predict(router: APIRouter, service: Service) -> None:
    """`POST /v1/predict`."""

    @router.post("/predict", openapi_extra=BODY, response_model=Predictions, summary="Classify images", tags=["images"])
    async def predict(request: Request, model: ModelName = "", top: Top = 5) -> Response:
        """The most probable classes of each image.

        `curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' 'http://127.0.0.1:8000/v1/predict?top=3'`
        """
        lanes = service.find(model)
        lanes.model.check_classes()
        service.admission.check()
        uploads = await service.read_images(request)
        rows = await service.outputs(lanes, "logits", uploads)
        found = [lanes.model.prediction(upload.name, row, top) for upload, row in zip(uploads, rows, strict=True)]
        return JSONResponse(
            {
                "model": lanes.model.name,
                "engine": lanes.model.engine,
                "predictions": [
                    {"name": each.path, "labels": list(each.labels), "scores": list(each.scores)} for each in found
                ],
                "request_id": request.state.request_id,
            }
        )


def add_features(router: APIRouter, service: Service) -> None:
    """`POST /v1/features`."""

    @router.post("/features", openapi_extra=BODY, response_model=FeatureVectors, summary="Features", tags=["images"])
    async def features(request: Request, model: ModelName = "") -> Response:
        """The features before the head: vectors for search, clustering, or a classifier of your own."""
        lanes = service.find(model)
        service.admission.check()
        uploads = await service.read_images(request)
        rows = await service.outputs(lanes, "features", uploads)
        return JSONResponse(
            {
                "model": lanes.model.name,
                "engine": lanes.model.engine,
                "width": len(rows[0]),
                "features": [
                    {"name": upload.name, "features": row.astype(np.float64).tolist()}
                    for upload, row in zip(uploads, rows, strict=True)
                ],
                "request_id": request.state.request_id,
            }
        )


def add_explain(router: APIRouter, service: Service) -> None:
    """`POST /v1/explain`."""

    @router.post(
        "/explain",
        openapi_extra=BODY,
        response_model=ExplanationMaps,
        responses=PNG,
        summary="Explain a prediction",
        tags=["images"],
    )
    async def explain(
        request: Request,
        model: ModelName = "",
        maps: Annotated[str, Query(description=MAPS_HELP, max_length=100)] = "attention,rollout,relevance",
        query: Annotated[str, Query(description="cls, or the index of a patch.", max_length=20)] = "cls",
        label: Annotated[str, Query(description=LABEL_HELP, max_length=MAX_LABEL)] = "",
        format: Annotated[Literal["json", "png"], Query(description="Numbers, or one map over the photo.")] = "json",
        layer: Annotated[int, Query(description="Of a PNG of attention, from 1; 0 for the last.", ge=0)] = 0,
        head: Annotated[int, Query(description="Of a PNG of attention, from 1; 0 for their mean.", ge=0)] = 0,
    ) -> Response:
        """Which patches of one image the model attends to, and which speak for a class."""
        lanes = service.find(model)
        service.admission.check()
        asked = parse_request(lanes.model, maps, query, label)
        check_picture(lanes.model, format, len(asked.maps), layer, head)
        upload = only_one(await service.read_images(request))
        with service.admission.accept(1, lanes.explain_cost):
            cropped = await service.crop(lanes.model, upload)
            photo = await service.decoders.photo(upload.data, upload.name) if format == "png" else cropped.pixels
            found = await service.maps(lanes, cropped, asked)

            def respond() -> Response:
                place = locate(lanes.model, cropped, photo)
                if format == "png":
                    return Response(draw_map(place, found, asked.maps[0], layer, head), media_type="image/png")
                numbers = explanation(lanes, found, asked, place, query)
                return JSONResponse(numbers | {"request_id": request.state.request_id})

            return await asyncio.to_thread(respond)  # a large picture takes tenths of a second, and nobody waits for it


def add_models(router: APIRouter, service: Service) -> None:
    """`GET /v1/models` and `GET /v1/models/NAME`."""

    @router.get("/models", response_model=ModelList, summary="Models", tags=["models"])
    async def models() -> Response:
        """The models of this server; the first is the default."""
        return JSONResponse({"models": [summarize(lanes.model) for lanes in service.models.values()]})

    @router.get("/models/{name}", response_model=ModelDetails, summary="One model", tags=["models"])
    async def model_details(name: str) -> Response:
        """The classes, the preprocessing and the card of a model."""
        found = service.find(name).model
        more = {
            "title": found.title,
            "task": found.bundle.task,
            "class_names": list(found.bundle.classes),
            "preprocessing": found.bundle.preprocessing.model_dump(mode="json"),
            "card": found.card,
        }
        return JSONResponse(summarize(found) | more)


def summarize(model: ServedModel) -> dict[str, object]:
    """The fields of a ModelSummary."""
    layers, heads = model.attention
    return ModelSummary(
        name=model.name,
        classes=len(model.bundle.classes),
        image_size=list(model.bundle.preprocessing.image_size),
        engine=model.engine,
        explain=layers > 0,
        layers=layers,
        heads=heads,
        parameters=model.parameters,
    ).model_dump()


def parse_request(model: ServedModel, maps: str, query: str, label: str) -> Any:
    """What is asked about an image, checked against the model before the image is read."""
    from vitral.explanation.explain import find_class
    from vitral.serving.models.maps import MapRequest, no_attention, parse_maps, parse_query

    if not model.attention.layers:
        raise no_attention()
    asked = parse_maps(maps)
    classes = model.bundle.classes
    if not classes and "relevance" in asked:
        message, hint = "this model has no classes that relevance could be about", "ask for attention,rollout"
        raise ConfigError(message, code="config.unsupported", where="maps", hint=hint)
    patches = model.grid.cells()
    try:
        target: int | Literal["predicted"] = find_class(label, classes) if label else "predicted"
    except ConfigError as error:
        raise ConfigError(error.message, code=error.code, where="label", hint=error.hint) from None
    return MapRequest(asked, parse_query(query, patches), target)


def check_picture(model: ServedModel, form: Literal["json", "png"], maps: int, layer: int, head: int) -> None:
    """Raise ConfigError for a picture of several maps, and for a layer or head that the model does not have."""
    if form == "png" and maps > 1:
        message, hint = "a PNG shows one map", "add maps=attention, maps=rollout or maps=relevance"
        raise ConfigError(message, code="config.conflict", where="maps", hint=hint)
    shape = model.attention
    for field, number, most in (("layer", layer, shape.layers), ("head", head, shape.heads)):
        if number > most:
            message = f"expected a number from 0 to {most}, got {number}"
            raise ConfigError(message, code="config.out_of_range", where=field)


def only_one(uploads: list[Upload]) -> Upload:
    """The image of a request that takes one."""
    if len(uploads) > 1:
        message, hint = f"expected one image, got {len(uploads)}", "send one image in each request"
        raise ServeError(message, code="serve.too_many_images", where="image", hint=hint)
    return uploads[0]


def locate(model: ServedModel, cropped: Cropped, photo: Any) -> Photo:
    """The photo, and the part of it that the patches cover."""
    import torch

    from vitral.explanation.explain import crop_fractions
    from vitral.explanation.trace import fit_to_patches

    whole = Photo("image", photo, cropped.pixels, *crop_fractions(cropped.plan, cropped.size))
    assert model.predictor.model is not None
    image = torch.zeros(1, cropped.pixels.shape[2], *cropped.pixels.shape[:2])
    return fit_to_patches(model.predictor.model, whole, image)[0]


def explanation(lanes: Lanes, found: Any, asked: Any, place: Photo, query: str) -> dict[str, object]:
    """The numbers of an explanation; maps that were not asked for are left out."""
    layers, heads = lanes.model.attention
    classes = lanes.model.bundle.classes
    answer: dict[str, object] = {
        "model": lanes.model.name,
        "grid": list(found.grid),
        "box": [round(edge, 6) for edge in (place.left, place.top, place.left + place.width, place.top + place.height)],
        "layers": layers,
        "heads": heads,
    }
    if found.attention.size:
        answer["attention"] = {"shape": list(found.attention.shape), "data": rounded(found.attention)}
    answer |= {kind: rounded(getattr(found, kind)) for kind in ("rollout", "relevance") if kind in asked.maps}
    label = classes[found.label] if classes and found.label is not None else ""
    return answer | {"label": label, "query": query}


def rounded(values: Array) -> list[float]:
    """Numbers with six significant digits at most, which keeps answers small."""
    flat = values.ravel().astype(np.float64)
    return np.round(flat, DIGITS).tolist() if flat.max(initial=0) > 1e-3 else [float(f"{each:.4g}") for each in flat]


def draw_map(place: Photo, found: Any, kind: str, layer: int, head: int) -> bytes:
    """A PNG of one map over the photo."""
    from vitral.explanation.page.pictures import overlay_map, scale_to_unit

    values = getattr(found, kind)
    if kind == "attention":
        heads = values[layer - 1]  # (H, N)
        values = heads[head - 1] if head else heads.mean(axis=0)  # (N,)
    pixels = overlay_map(place, scale_to_unit((values - values.min()).reshape(found.grid)))
    file = BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
