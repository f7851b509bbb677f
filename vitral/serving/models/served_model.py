"""A model that answers requests: its engine, chosen once, and the torch model for explanations.

B images, H x W pixels, C channels, K classes, D width.
"""

import asyncio
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitral.core.errors import ConfigError, WeightsError
from vitral.inference.engines.engine import FloatArray, NamedEngine, OutputKind, PixelBatch
from vitral.inference.exported import Export, is_export
from vitral.inference.predictor import Predictor, run_model
from vitral.inference.writers import Prediction, name_classes, topk
from vitral.serving.models.snapshot import copy_files, copy_weights
from vitral.weights.card import architecture
from vitral.weights.load import LoadedModel, find_bundle

if TYPE_CHECKING:
    from torch import Tensor

    from vitral.models.base import Grid
    from vitral.serving.models.maps import MapRequest, Maps
    from vitral.weights.bundle import Bundle

log = logging.getLogger("vitral")
CARD, MAX_CARD = "README.md", 200_000  # characters
BATCH = 32  # for which the engine is chosen
GOLDEN_IMAGES = 2
TOLERANCE = 1e-3  # between engine and model, relative to the largest output


class ServedModel:
    """One model under its name. It is immutable, except that the engine for features is built when first needed."""

    def __init__(self, name: str, source: "str | Path | LoadedModel", engine: str, is_private: bool = False) -> None:
        """Load a model; `is_private` says that nobody else writes to its files."""
        self.name, self.source = name, source
        self._folder: TemporaryDirectory[str] | None = None  # of the copy of an export
        self._card = read_card(source)
        if not is_private and not isinstance(source, LoadedModel) and is_export(Path(source).expanduser()):
            self._folder = TemporaryDirectory(prefix="vitral-export-")
            copy_files(source, Path(self._folder.name) / name)
            source = Path(self._folder.name) / name
        self.predictor = Predictor(source, engine=engine)
        if not is_private and not isinstance(source, LoadedModel) and self.predictor.model is not None:
            copy_weights(self.predictor.model)  # before an engine is made of them
        self.bundle: Bundle | Export = self.predictor.bundle
        self.bundle.preprocessing.check_readable(name)
        self.output: OutputKind = "logits" if self.bundle.classes else "features"
        self._engines: dict[OutputKind, NamedEngine] = {}
        self._lock = Lock()
        self.engine = self._select(self.output).name

    def run(self, pixels: PixelBatch) -> FloatArray:
        """The logits (B, K)."""
        self.check_classes()
        return self._select("logits").engine.run(pixels)

    def features(self, pixels: PixelBatch) -> FloatArray:
        """The features before the head (B, D)."""
        return self._select("features").engine.run(pixels)

    def run_tensors(self, images: "list[Tensor]") -> FloatArray:
        """The outputs of `output` for images (C, H, W) in float32, by the torch model."""
        model = self.predictor.model
        assert model is not None
        return run_model(model, images, self.output)

    async def prepare(self, output: OutputKind) -> None:
        """Build the engine for an output beside what runs, if it does not exist yet."""
        if output not in self._engines:
            await asyncio.to_thread(self._select, output)

    def _select(self, output: OutputKind) -> NamedEngine:
        with self._lock:
            if output not in self._engines:
                self._engines[output] = self.predictor.select_engine(output, None, BATCH)
            return self._engines[output]

    def check_classes(self) -> None:
        """Raise ConfigError for a model without classes."""
        if not self.bundle.classes:
            message = f"this model was made for {self.bundle.task} and has no classes"
            raise ConfigError(message, code="config.unsupported", where="model", hint="ask for its features")

    def prediction(self, name: str, logits: FloatArray, top: int) -> Prediction:
        """The most probable classes of one image, from its logits (K,)."""
        row = next(topk(logits[None], min(top, len(self.bundle.classes)), self.bundle.activation))
        return Prediction(name, *name_classes(row, self.bundle.classes), self.engine)

    @property
    def attention(self) -> "AttentionShape":
        """The layers and heads of a model with attention; zeros for any other."""
        model = self.predictor.model
        if model is None:
            return AttentionShape(0, 0)
        from vitral.explanation.trace import has_attention
        from vitral.models.attention import BaseAttention, SelfAttention

        mixer = getattr(model.config, "mixer", None)
        if not has_attention(model) or not isinstance(mixer, BaseAttention):
            return AttentionShape(0, 0)
        blocks = list(model.get_submodule("blocks").children())
        branches = sum(isinstance(part, SelfAttention) for part in blocks[0].modules())  # side by side
        return AttentionShape(len(blocks), branches * mixer.heads)

    @property
    def grid(self) -> "Grid":
        """The patches of an image; for a model with attention."""
        assert not isinstance(self.bundle, Export)
        return self.bundle.model.layout(self.bundle.preprocessing.image_size).grid

    @property
    def parameters(self) -> int:
        """The number of parameters; 0 of an export, which does not record it."""
        model = self.predictor.model
        return sum(each.numel() for each in model.parameters()) if model is not None else 0

    @property
    def title(self) -> str:
        """The architecture in a few words."""
        if isinstance(self.bundle, Export):
            return f"export for {self.bundle.kind}, {self.bundle.precision}"
        return architecture(self.bundle.model)

    @property
    def card(self) -> str:
        """The model card beside the weights, as it was when they were loaded; empty where there is none."""
        return self._card

    def explain(self, image: "Tensor", request: "MapRequest") -> "Maps":
        """The maps of one image (1, C, H, W)."""
        from vitral.serving.models.maps import compute_maps, no_attention

        if self.predictor.model is None:
            raise no_attention()
        return compute_maps(self.predictor.model, image, request, self.bundle.task == "classify")

    def check_golden(self) -> None:
        """Raise WeightsError unless the engine gives sound outputs on a fixed input, those of the model."""
        pixels = golden_pixels(self.predictor.pixel_shape)
        outputs = self._select(self.output).engine.run(pixels)  # (B, K)
        expected = len(self.bundle.classes) or self.predictor.width
        if outputs.shape != (GOLDEN_IMAGES, expected) or not np.isfinite(outputs).all():
            message = "its outputs for a test image are infinite, not numbers, or not as many as its classes"
            raise WeightsError(message, code="weights.not_finite", where=self.name, hint="use other weights")
        if self.predictor.model is None:
            return
        import torch

        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        truth = self.run_tensors(list(self.bundle.preprocessing.normalize.apply(images)))
        difference = float(np.abs(outputs - truth).max())
        if difference > TOLERANCE * max(1.0, float(np.abs(truth).max())):
            message = f"engine {self.engine} and the model differ by {difference:.2g} on a test image"
            raise WeightsError(message, code="weights.mismatch", where=self.name, hint="choose another --engine")

    def close(self) -> None:
        """Free what it holds outside of this process."""
        self.predictor.close()
        if self._folder is not None:
            self._folder.cleanup()


def read_card(source: object) -> str:
    """The README.md of a bundle or an export on disk."""
    if not isinstance(source, str | Path):
        return ""
    folder = Path(source).expanduser()
    home = find_bundle(folder) or folder
    try:
        return (home / CARD).read_text(encoding="utf-8", errors="replace")[:MAX_CARD]
    except OSError:
        return ""


class AttentionShape(NamedTuple):
    """How much attention a model has."""

    layers: int
    heads: int  # of a layer


def golden_pixels(shape: tuple[int, int, int]) -> PixelBatch:
    """The fixed input (B, H, W, C): a slope and noise."""
    height, width, channels = shape
    rows, columns = np.mgrid[0:height, 0:width]
    slope = (rows * 255 // max(1, height - 1) + columns * 255 // max(1, width - 1)) // 2  # (H, W)
    noise = np.random.default_rng(0).integers(256, size=(height, width, channels))  # (H, W, C)
    return np.stack([np.repeat(slope[..., None], channels, axis=2), noise]).astype(np.uint8)
