"""Who may ask: the Host header, the origin of a page, and the token."""

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from vitral.core.errors import ServeError
from vitral.serving.config import LOOPBACK_NAMES, ServeConfig, is_loopback

OPEN_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready")
OPEN_FOLDERS = ("/page/", "/docs/")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def check_access(config: ServeConfig, path: str, headers: Headers, method: str = "GET") -> None:
    """Raise ServeError for a request that this server must not answer."""
    check_host(config, headers.get("host", ""))
    check_origin(config, headers)
    is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)
    is_preflight = method == "OPTIONS" and bool(config.cors)  # which a browser sends without the token
    if config.token and not is_open and not is_preflight:
        check_token(config.token, headers.get("authorization", ""))


def check_host(config: ServeConfig, host: str) -> None:
    """Refuse names that are not this server's: a page elsewhere could otherwise reach it through its own name (DNS).

    An address instead of a name is safe, since no name was resolved; on loopback it must be one of loopback.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        name = ""
    known = {*LOOPBACK_NAMES, *(each.lower() for each in (config.host, *config.hosts))}
    if not is_loopback(config.host):
        known.add(socket.gethostname().lower())
    if name in known or is_own_address(name, is_loopback(config.host)):
        return
    message, hint = "the Host header names another server", "use the server's address, or start it with --allow-host"
    raise ServeError(message, code="serve.wrong_host", where="Host", hint=hint)


def is_own_address(name: str, only_loopback: bool) -> bool:
    """Whether a name is an IP address that this server may have."""
    try:
        return ipaddress.ip_address(name).is_loopback or not only_loopback
    except ValueError:
        return False


def check_origin(config: ServeConfig, headers: Headers) -> None:
    """Refuse requests that a page of another origin makes a browser send, unless that origin was named."""
    origin = headers.get("origin")
    if origin is None or origin in config.cors or origin.partition("://")[2] == headers.get("host"):
        return
    message, hint = "a page of another origin sent this request", "start the server with --cors ORIGIN to allow it"
    raise ServeError(message, code="serve.wrong_origin", where="Origin", hint=hint)


def check_token(token: str, authorization: str) -> None:
    """Refuse requests without the token; the comparison takes as long for any wrong one."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode()):
        return
    message = "the token is wrong" if authorization else "the request has no token"
    hint = "send the header Authorization: Bearer TOKEN"
    raise ServeError(message, code="serve.unauthorized", where="Authorization", hint=hint)
