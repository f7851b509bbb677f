"""`vitral describe`: every shape, parameter, multiply-add and byte of a model, from image to answer."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitral.explain.description import Description, Need, Part
from vitral.explain.equations import equations
from vitral.model import Model, Resnet, VisionTransformer, Vit, model_config
from vitral.model.bit import ResidualNetwork
from vitral.model.ledger import Ledger

BATCHES = (1, 64)
BYTES = 4  # of a float32


class Entry(NamedTuple):
    """A row to be: the modules that it sums over."""

    name: str
    level: int
    modules: tuple[nn.Module, ...]


def describe(model: str | Vit | Resnet, *settings: str) -> Description:
    """A model by name or config, run on images without values and counted: `print(describe("B/16", "image=384"))`."""
    config = model_config(model, *settings)
    with FakeTensorMode():
        frame = config.skeleton("cpu")
        parts, whole = counted(frame, config)
        answering = sum(part.multiply_adds for part in parts if part.name in ("pool", "head"))
        full = run(frame, config, 1, frame.features).multiply_adds + answering
        needs = tuple(need(frame, config, batch) for batch in BATCHES)
    layout = config.layout(config.image)
    return Description(
        image=config.image,
        channels=config.channels,
        tokens=(layout.cls, layout.registers, *layout.grid),
        parts=parts,
        parameters=whole.parameters,
        multiply_adds=whole.multiply_adds,
        multiply_adds_in_full=full,
        kept=whole.kept,
        needs=needs,
        equations=equations(config),
        config=config,
    )


@cache
def multiply_adds(model: Vit | Resnet, in_full: bool) -> int:
    """Multiply-adds of a forward pass for one image: of the answer alone, or of all tokens to the last layer."""
    with FakeTensorMode():
        frame = model.skeleton("cpu")
        return run(frame, model, 1, frame.features if in_full else frame.forward).multiply_adds


def counted(model: Model, config: Vit | Resnet) -> tuple[tuple[Part, ...], Part]:
    """The rows of the table, and the model as one row."""
    images, listed = blank(config, 1), entries(model)
    ledger = Ledger([*model.parameters(), images])
    parts = {module for entry in listed if entry.level == 0 for module in entry.modules}
    tape = Tape(ledger)
    meters = {module: Meter(module, tape, is_part=module in parts) for module in model.modules()}
    with ledger:
        model(images)
    for meter in meters.values():
        meter.stop()
    return tuple(row(entry, meters) for entry in listed), row(Entry("model", 0, (model,)), meters)


class Tape:
    """A ledger, and what lived when the last part ended."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.live_before = 0


class Meter:
    """What the ledger gained while a module ran, over all its runs.

    A part of the model is charged from the end of the part before it, so that what one part leaves for the next to
    free is counted once and the parts add up to the model.
    """

    def __init__(self, module: nn.Module, tape: Tape, is_part: bool) -> None:
        self.shape: tuple[int, ...] = ()
        self.multiply_adds = self.kept = 0
        self._tape, self._is_part = tape, is_part
        self._hooks = [module.register_forward_pre_hook(self._before), module.register_forward_hook(self._after)]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, module: nn.Module, given: object) -> None:
        ledger = self._tape.ledger
        self.multiply_adds -= ledger.multiply_adds
        self.kept -= self._tape.live_before if self._is_part else ledger.live

    def _after(self, module: nn.Module, given: object, result: object) -> None:
        ledger = self._tape.ledger
        self.multiply_adds += ledger.multiply_adds
        self.kept += ledger.live
        if self._is_part:
            self._tape.live_before = ledger.live
        if isinstance(result, Tensor):
            self.shape = tuple(result.shape[1:])


def row(entry: Entry, meters: dict[nn.Module, Meter]) -> Part:
    found = [meters[module] for module in entry.modules]
    return Part(
        name=entry.name,
        level=entry.level,
        shape=found[-1].shape,
        parameters=sum(weight.numel() for module in entry.modules for weight in module.parameters()),
        multiply_adds=sum(meter.multiply_adds for meter in found),
        kept=sum(meter.kept for meter in found),
    )


def entries(model: Model) -> list[Entry]:
    """The parts in the order in which an image passes them."""
    if isinstance(model, ResidualNetwork):
        return [*inside(model.body, level=0), Entry("head", 0, (model.head,))]
    assert isinstance(model, VisionTransformer)
    blocks = list(model.blocks)
    rows = [Entry("stem", 0, (model.stem,)), *inside(model.stem, level=1)]
    rows += [Entry(prefix_name(model), 0, (model.prefix,)), Entry("position", 0, (model.position,))]
    if model.config.tokens.norm:
        rows.append(Entry("first norm", 0, (model.first_norm,)))
    rows += [Entry("block 1", 0, (blocks[0],)), *inside(blocks[0], level=1)]
    if len(blocks) > 2:
        name = f"blocks 2 to {len(blocks) - 1}" if len(blocks) > 3 else "block 2"
        rows.append(Entry(name, 0, tuple(blocks[1:-1])))
    if len(blocks) > 1:
        rows.append(Entry(f"block {len(blocks)}", 0, (blocks[-1],)))
    return [*rows, Entry("norm", 0, (model.norm,)), Entry("pool", 0, (model.pool,)), Entry("head", 0, (model.head,))]


def prefix_name(model: VisionTransformer) -> str:
    names = ["class token"] * model.config.tokens.cls + ["registers"] * (model.config.tokens.registers > 0)
    return " and ".join(names) or "no tokens but the patches"


def inside(module: nn.Module, level: int) -> list[Entry]:
    """The named children that do something, those of a hybrid's body taken apart into root and stages."""
    rows: list[Entry] = []
    for name, child in module.named_children():
        if name == "body":
            rows += inside(child, level)
        elif name == "stages":
            rows += [Entry(f"stage {index}", level, (stage,)) for index, stage in enumerate(child.children(), start=1)]
        elif any(True for _ in child.parameters()):
            rows.append(Entry(name.replace("_", " "), level, (child,)))
    return rows


def need(model: Model, config: Vit | Resnet, batch: int) -> Need:
    weights = BYTES * sum(weight.numel() for weight in model.parameters())
    pixels = BYTES * batch * config.channels * config.image.height * config.image.width
    inference = run(model.eval(), config, batch, torch.no_grad()(model.forward)).peak
    training = run(model.train(), config, batch, lambda images: model(images).sum().backward()).peak
    model.zero_grad()
    return Need(batch=batch, inference=weights + pixels + inference, training=3 * weights + pixels + training)


def run(model: Model, config: Vit | Resnet, batch: int, use: Callable[[Tensor], object]) -> Ledger:
    """The ledger of one use of the model; weights and images are not in it."""
    images = blank(config, batch)
    with Ledger([*model.parameters(), images]) as ledger:
        use(images)
    return ledger


def blank(config: Vit | Resnet, batch: int) -> Tensor:
    return torch.empty(batch, config.channels, *config.image)  # (B, C, H, W)
