"""A model on Ray Serve, for those who outgrow one machine: replicas on a cluster, batches by Ray.

    pip install 'vitral[deploy]' 'ray[serve]'
    VITRAL_MODEL=runs/photos serve run deploy.ray_serve:app
    curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' 'http://127.0.0.1:8000/?top=3'

A replica decodes uploads in child processes with limits, as `vitral serve` does, and refuses what Ray cannot queue.
"""

import asyncio
import os
import re

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from vitral import Predictor, VitralError
from vitral.core.activation import probabilities
from vitral.data.decoding.isolation import Isolation

MAX_UPLOAD = 10_000_000  # bytes
CPUS = float(os.environ.get("VITRAL_CPUS", "2"))  # of a replica


@serve.deployment(
    max_ongoing_requests=64,
    max_queued_requests=64,
    ray_actor_options={"num_cpus": CPUS},
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 16},
)
class Classifier:
    """One replica: a predictor, whose engine is chosen once."""

    def __init__(self, model: str) -> None:
        self.predictor = Predictor(model)
        self.decode = Isolation(processes=2).build()
        self.predictor.warm_up(1, 32)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def logits(self, pixels: list[np.ndarray]) -> list[np.ndarray]:
        """The logits of a batch that Ray gathered."""
        return list(await asyncio.to_thread(self.predictor.logits, np.stack(pixels)))

    async def __call__(self, request: Request) -> JSONResponse:
        """The most probable classes of the image in the body."""
        top = request.query_params.get("top", "5")
        if not re.fullmatch("[1-9][0-9]{0,3}", top):
            return JSONResponse({"code": "config.wrong_type", "detail": "top is a number from 1 to 9999"}, 422)
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_UPLOAD:
                return JSONResponse({"code": "serve.too_large", "detail": "send a smaller image"}, 413)
        bundle = self.predictor.bundle
        try:
            pixels = await asyncio.to_thread(bundle.preprocessing.pixels, bytes(data), "image", self.decode)
        except VitralError as error:
            return JSONResponse({"code": error.code, "detail": error.message, "hint": error.hint}, 422)
        logits = await self.logits(np.ascontiguousarray(pixels))
        scores = probabilities(logits, bundle.activation)
        best = np.argsort(-scores, kind="stable")[: int(top)]
        return JSONResponse(
            {"labels": [bundle.classes[each] for each in best], "scores": [float(scores[each]) for each in best]}
        )

    def __del__(self) -> None:
        self.decode.close()


app = Classifier.bind(os.environ.get("VITRAL_MODEL", "runs/photos"))
