"""The settings of a server: where it listens, who may ask, and the limits on what they ask."""

import ipaddress
from typing import Annotated, Self

from pydantic import Field, model_validator

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.inference.engines.engine import AUTO

MIB = 2**20
LOOPBACK_NAMES = ("localhost",)
TOKEN_HINT = "pass --token or set VITRAL_TOKEN, or pass --insecure if anyone on that network may use the model"
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Limits(Config):
    """What one request, and all requests together, may take."""

    upload: Count = 10_000_000  # bytes of a request, counted while they arrive
    uploads: Count = 256 * MIB  # bytes of all requests that are not answered yet
    images: Count = 32  # of a request
    queue: Count = 64  # images that are accepted and not answered yet
    queue_seconds: Seconds = 5.0  # of work that may wait; what would wait longer is refused at once
    wait_seconds: Seconds = 10.0  # that an accepted image may wait for its batch, should the machine become slower
    body_seconds: Seconds = 10.0  # for a request to arrive
    deadline: Seconds = 30.0  # for a request in all
    drain_seconds: Seconds = 9.0  # for accepted requests after SIGTERM
    connections: Count = 1000


class Batching(Config):
    """How images gather into batches."""

    size: Annotated[int, Field(ge=1, le=1024)] = 32  # images, at most
    wait_seconds: Annotated[float, Field(ge=0, le=1)] = 0.005  # for images that are being decoded
    run_seconds: Seconds = 0.25  # a batch has at most so much work, so that no image waits long for those before it


class ServeConfig(Config):
    """A server: `vitral serve` and `vitral.serve` have the same options."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0 for any that is free
    token: str = Field(default="", repr=False)  # that clients must send; empty for none
    insecure: bool = False  # serve a network without a token
    hosts: tuple[str, ...] = ()  # more names that clients may call the server by, such as that of a proxy
    cors: tuple[str, ...] = ()  # origins of pages elsewhere that may use the API
    tls_cert: str = ""  # files in PEM format
    tls_key: str = ""
    workers: Count = 1  # processes
    engine: str = AUTO
    decoders: Annotated[int, Field(ge=0)] = 0  # processes that decode images; 0 for one a core
    limits: Limits = Limits()
    batching: Batching = Batching()

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if not is_loopback(self.host) and not self.token and not self.insecure:
            message = f"{self.host} can be reached from the network, and the server has no token"
            raise ConfigError(message, code="config.no_token", where="host", hint=TOKEN_HINT)
        if self.token and (not self.token.isascii() or not self.token.isprintable() or " " in self.token):
            message = "expected letters, digits and signs of ASCII, without spaces"
            raise ConfigError(message, code="config.wrong_type", where="token", hint="choose another token")
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            message, hint = "TLS needs a certificate and its key", "pass both --tls-cert and --tls-key, or neither"
            raise ConfigError(message, code="config.missing_value", where=missing, hint=hint)
        return self

    @property
    def scheme(self) -> str:
        """The first part of the server's address."""
        return "https" if self.tls_cert else "http"


def is_loopback(host: str) -> bool:
    """Whether a name or address can be reached from this machine alone."""
    if host.lower() in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
