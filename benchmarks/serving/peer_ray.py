"""The model on Ray Serve: `python -m benchmarks.serving.peer_ray BUNDLE engine|torch ENGINE PORT`."""

import asyncio
import os
import signal
import sys
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

from benchmarks.serving.peer_model import PeerModel


@serve.deployment(max_ongoing_requests=128, ray_actor_options={"num_cpus": 0})
class Classifier:
    """Decodes in threads, gathers by Ray's own batching, and runs."""

    def __init__(self, bundle: str, kind: str, engine: str) -> None:
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
        self.peer = PeerModel(bundle, kind, engine)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)  # type: ignore[untyped-decorator]
    async def run(self, images: list[Any]) -> list[Any]:
        return list(await asyncio.to_thread(self.peer.run, np.stack(images)))

    async def __call__(self, request: Request) -> dict[str, Any]:
        form = await request.form()
        upload = form["request"]
        data = await upload.read()  # type: ignore[union-attr]
        return self.peer.answer(await self.run(await asyncio.to_thread(self.peer.pixels, data)))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[4])})
    serve.run(Classifier.bind(*sys.argv[1:4]), route_prefix="/predict")  # type: ignore[attr-defined]
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    serve.shutdown()
    ray.shutdown()
