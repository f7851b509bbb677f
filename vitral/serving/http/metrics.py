"""Metrics for Prometheus: requests, seconds by stage, the queue, batch sizes, errors, reloads."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder where worker processes keep their numbers, read by prometheus_client


class Metrics:
    """The numbers of this process; with several workers any of them reports those of all."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        own = CollectorRegistry()
        self._registry = own
        self._requests = Counter("vitral_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self._errors = Counter("vitral_errors", "Refused or failed requests by code.", ["code"], registry=own)
        self._latency = Histogram(
            "vitral_request_seconds", "Seconds from the first byte of a request to its answer.", ["route"],
            buckets=SECONDS, registry=own,
        )  # fmt: skip
        self._stages = Histogram(
            "vitral_stage_seconds", "Seconds an image spends in a stage: upload, decode, queue, run or explain.",
            ["stage", "model"], buckets=SECONDS, registry=own,
        )  # fmt: skip
        self._batches = Histogram("vitral_batch_images", "Images a batch.", ["model"], buckets=SIZES, registry=own)
        self._queue = Gauge(
            "vitral_queue_images", "Images accepted and not answered yet.", registry=own, multiprocess_mode="livesum"
        )
        self._uploads = Gauge(
            "vitral_upload_bytes", "Bytes of requests not answered yet.", registry=own, multiprocess_mode="livesum"
        )
        self._abandoned = Counter("vitral_abandoned", "Requests whose client left before the answer.", registry=own)
        self._reloads = Counter("vitral_reloads", "Reloads of models by outcome.", ["outcome"], registry=own)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def error(self, code: str) -> None:
        """Count an error by its code."""
        self._errors.labels(code).inc()

    def abandoned(self) -> None:
        """Count a request whose client left."""
        self._abandoned.inc()

    def stage(self, stage: str, model: str, seconds: float) -> None:
        """Count the seconds of an image in a stage."""
        self._stages.labels(stage, model).observe(seconds)

    def batch(self, model: str, images: int, seconds: float) -> None:
        """Count a batch that was run."""
        self._batches.labels(model).observe(images)
        self._stages.labels("run", model).observe(seconds)

    def load(self, images: int, upload_bytes: int) -> None:
        """Set what is waiting now."""
        self._queue.set(images)
        self._uploads.set(upload_bytes)

    def reload(self, outcome: str) -> None:
        """Count a reload: `loaded` or `refused`."""
        self._reloads.labels(outcome).inc()

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


METRICS = Metrics()
