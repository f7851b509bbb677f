"""The model behind every server that is compared: our engine, or the torch model as it is.  B images, H x W pixels."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from vitral.inference.predictor import Predictor
from vitral.weights.load import load

Kind = Literal["engine", "torch"]


class PeerModel:
    """Decodes uploads and runs batches; both kinds have the same preprocessing."""

    def __init__(self, bundle: str, kind: str, engine: str) -> None:
        loaded = load(bundle)
        self.needs = loaded.bundle.preprocessing
        self.classes = loaded.bundle.classes
        self.run: Callable[[Any], Any] = self._run_torch
        if kind == "engine":
            self.run = Predictor(bundle, engine=engine).select_engine("logits", None, 32).engine.run
        self.model = loaded.model

    def pixels(self, data: bytes) -> Any:
        """An upload as (H, W, C) uint8."""
        return np.ascontiguousarray(self.needs.pixels(data, "image"))

    def _run_torch(self, pixels: Any) -> Any:
        images = self.needs.normalize.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2))  # (B, C, H, W)
        with torch.inference_mode():
            return self.model(images).numpy()  # (B, K)

    def answer(self, logits: Any) -> dict[str, Any]:
        """The five most probable classes."""
        powers = np.exp(logits.astype(np.float64) - logits.max())
        scores = powers / powers.sum()
        best = np.argsort(-scores)[:5]
        return {"labels": [self.classes[each] for each in best], "scores": scores[best].tolist()}
