"""Errors as `application/problem+json` (RFC 9457): what went wrong, in which field, and what to do."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from math import ceil

from starlette.responses import Response

from vitral.core.errors import ConfigError, DataError, ServeError, VitralError

MEDIA_TYPE = "application/problem+json"

# The status of each refusal; what is wrong with an image or a parameter is 422.
STATUSES = {
    "serve.bad_request": 400,
    "serve.unauthorized": 401,
    "serve.wrong_origin": 403,
    "serve.not_found": 404,
    "serve.unknown_model": 404,
    "serve.wrong_method": 405,
    "serve.slow_upload": 408,
    "serve.too_large": 413,
    "serve.too_many_images": 413,
    "serve.wrong_type": 415,
    "serve.wrong_host": 421,
    "serve.no_image": 422,
    "serve.queue_full": 429,
    "serve.uploads_full": 429,
    "serve.queue_timeout": 503,
    "serve.deadline": 503,
    "serve.stopping": 503,
}
UNEXPECTED = "the server failed; its log has the request id"
REPORT = "try again; if it happens again, report it with the request id"


class BusyError(ServeError):
    """A refusal that a client may repeat later."""

    def __init__(self, message: str, *, code: str, retry_after: float, hint: str = "try again later") -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after  # seconds


def status_of(error: VitralError) -> int:
    """The HTTP status of an error."""
    if error.code in STATUSES:
        return STATUSES[error.code]
    return 422 if isinstance(error, ConfigError | DataError) else 500


def problem(error: VitralError, request_id: str) -> Response:
    """The response for an error. What only the server's owner may know is left out of those with status 500."""
    status = status_of(error)
    known = status != HTTPStatus.INTERNAL_SERVER_ERROR
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message if known else UNEXPECTED,
        "code": error.code if known else "internal.unexpected",
        "field": error.where if known else "",
        "hint": error.hint if known else REPORT,
        "request_id": request_id,
        "error": error.message if known else UNEXPECTED,  # where clients of the Open Inference Protocol look
    }
    return Response(
        json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace"),
        status,
        headers=dict(_headers(error, status)),
        media_type=MEDIA_TYPE,
    )


def _headers(error: VitralError, status: int) -> Mapping[str, str]:
    if isinstance(error, BusyError):
        return {"retry-after": str(max(1, ceil(error.retry_after)))}
    return {"www-authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
