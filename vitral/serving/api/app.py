"""The application: routes, errors, the page, and the gate around them."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from vitral import __version__
from vitral.core.errors import ConfigError, ServeError, VitralError
from vitral.serving.api import protocol_v2, v1
from vitral.serving.api.docs import complete_description, docs_routes
from vitral.serving.api.schema import Health
from vitral.serving.http.gate import Gate
from vitral.serving.http.metrics import METRICS
from vitral.serving.http.problems import problem
from vitral.serving.page.page import page_files
from vitral.serving.service import Service

DESCRIPTION = """Classify, explain and embed images with Vision Transformers.

Send an image as the body, or several as a form. Errors are `application/problem+json` with a stable `code`.
Where the server has a token, send it as `Authorization: Bearer TOKEN`.
"""
CODES = {404: "serve.not_found", 405: "serve.wrong_method"}
HINTS = {404: "see /docs for the routes", 405: "see /docs for the methods of this route"}


def create_app(service: Service) -> ASGIApp:
    """The ASGI application of a service that has started."""
    app = FastAPI(
        title="Vitral",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    add_error_handlers(app)
    app.include_router(v1.routes(service))
    app.include_router(protocol_v2.routes(service))
    add_probes(app, service)
    app.include_router(docs_routes())
    add_page(app, service)
    has_token = bool(service.config.token)  # then only those who have it may know the names of the models
    complete_description(app, "photos" if has_token else next(iter(service.models)), has_token)
    inner: ASGIApp = app
    if service.config.cors:
        inner = CORSMiddleware(
            app,
            allow_origins=service.config.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return Gate(inner, service.config, service.memory)


def add_error_handlers(app: FastAPI) -> None:
    """Turn every error into a problem."""

    def answer(request: Request, error: VitralError) -> Response:
        request.state.passage.code = error.code
        return problem(error, request.state.request_id)

    async def on_vitral_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, VitralError)
        return answer(request, error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code, hint = CODES.get(error.status_code, "serve.bad_request"), HINTS.get(error.status_code, "")
        response = answer(request, ServeError(str(error.detail), code=code, where="path", hint=hint))
        response.headers.update(error.headers or {})
        return response

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        return answer(request, ConfigError(first["msg"], code="config.wrong_type", where=field, hint="see /docs"))

    async def on_any_error(request: Request, error: Exception) -> Response:
        return answer(request, VitralError(str(error), code="internal.unexpected"))

    app.add_exception_handler(VitralError, on_vitral_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(Exception, on_any_error)


def add_probes(app: FastAPI, service: Service) -> None:
    """What those who run the server ask."""

    @app.get("/healthz", response_model=Health, summary="Whether the server runs", tags=["operation"])
    async def healthz() -> Response:
        """200 as long as the process answers."""
        return JSONResponse({"status": "ok"})

    not_ready: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Loading or stopping."}}

    @app.get("/readyz", response_model=Health, responses=not_ready, summary="Whether it is ready", tags=["operation"])
    async def readyz() -> Response:
        """200 when requests are answered, 503 while models load and once the server stops."""
        if service.admission.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ready" if service.is_ready else "loading"}, 200 if service.is_ready else 503)

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @app.get("/metrics", response_class=Response, responses=text, summary="Metrics for Prometheus", tags=["operation"])
    async def metrics() -> Response:
        """Requests, seconds by stage, the queue, batch sizes and errors."""
        METRICS.load(service.admission.images, service.memory.bytes)
        return Response(METRICS.text(), media_type=METRICS.media_type)


def add_page(app: FastAPI, service: Service) -> None:
    """The page and its files, which are in memory: no path of a request is opened."""
    classes: Mapping[str, tuple[str, ...]] = {
        name: lanes.model.bundle.classes for name, lanes in service.models.items()
    }
    files = page_files(classes, service.limits.upload)

    def add(path: str, media_type: str, content: bytes) -> None:
        async def page_file() -> Response:
            return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

        app.add_api_route(path, page_file, methods=["GET"], include_in_schema=False)

    for path, (media_type, content) in files.items():
        add(path, media_type, content)
