"""`/docs`: Swagger UI with its files from the package swagger-ui-bundle, so that nothing is fetched from elsewhere."""

from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from vitral.serving.api.schema import Problem

FILES = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "favicon-32x32.png": "image/png",
}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Vitral API</title>
<link rel="icon" href="docs/favicon-32x32.png" type="image/png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<script src="docs/swagger-ui-bundle.js" defer></script>
<script src="docs/start.js" defer></script>
</head>
<body><div id="swagger"></div></body>
</html>
"""
START = """// Swagger UI looks for a component of its own for each format, and complains where there is none.
const binary = (system) => ({components: {
  JsonSchema_string_binary: (given) => system.React.createElement(system.getComponent("JsonSchema_string"), given),
}});
SwaggerUIBundle({
  url: "openapi.json",
  plugins: [binary],
  dom_id: "#swagger",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
  validatorUrl: null,
});
"""


def complete_description(app: FastAPI, model: str, has_token: bool) -> None:
    """Complete the OpenAPI description of an application, which keeps it: examples, problems, and the token.

    `model` is the name that parameters have as their example.
    """
    app.openapi_version = "3.0.3"  # the newest that the Swagger files understand
    described = app.openapi()
    parts = described["components"]
    parts["schemas"]["Problem"] = Problem.model_json_schema()
    use_single_examples(described)
    for route in described["paths"].values():
        for operation in route.values():
            for parameter in operation.get("parameters", ()):
                if (parameter["in"], parameter["name"]) == ("path", "name"):
                    parameter["example"] = model
    if has_token:
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]


def use_single_examples(part: Any) -> None:
    """Turn the `examples` of schemas, which version 3.1 has, into the `example` of version 3.0."""
    if isinstance(part, list):
        for each in part:
            use_single_examples(each)
    elif isinstance(part, dict):
        if isinstance(part.get("examples"), list):
            part["example"] = part.pop("examples")[0]
        for each in part.values():
            use_single_examples(each)


@cache
def swagger_file(name: str) -> bytes:
    """A file of Swagger UI."""
    import swagger_ui_bundle

    return (Path(swagger_ui_bundle.swagger_ui_path) / name).read_bytes()


def docs_routes() -> APIRouter:
    """The page and its files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        return Response(PAGE, media_type="text/html; charset=utf-8")

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(START, media_type="text/javascript; charset=utf-8")

    def add(name: str, media_type: str) -> None:
        async def docs_file() -> Response:
            return Response(swagger_file(name), media_type=media_type, headers={"cache-control": "max-age=86400"})

        router.add_api_route(f"/docs/{name}", docs_file, methods=["GET"])

    for name, media_type in FILES.items():
        add(name, media_type)
    return router
