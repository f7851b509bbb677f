"""One server for all tests that do not stop or break it."""

from collections.abc import Iterator

import pytest

from tests.inference.truth import loaded
from tests.models.variants import VARIANTS, small
from vitral.models.head import NoHead
from vitral.serving.config import Limits, ServeConfig
from vitral.serving.server import Server

# What a busy machine could make too short is long: times that run out have servers of their own.
LONG = 60.0
LIMITS = Limits(
    upload=200_000, images=3, queue=8, queue_seconds=LONG, wait_seconds=LONG, body_seconds=LONG, deadline=LONG
)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    models = {
        "vit": loaded(small()),
        "other": loaded(small(depth=1)),
        "resnet": loaded(VARIANTS["resnet"]),
        "headless": loaded(small(head=NoHead())),
    }
    with Server(models, ServeConfig(port=0, engine="eager", decoders=1, limits=LIMITS)) as running:
        yield running
