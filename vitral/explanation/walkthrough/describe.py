"""`vitral describe`: every shape, parameter, multiply-add and byte of a model, from image to answer.

What is known of a model once it is counted, and how that reads on a terminal.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitral.core.config import Config, Size
from vitral.explanation.walkthrough.equations import equations
from vitral.models import Model, Resnet, VisionTransformer, Vit, model_config
from vitral.models.hooks import FlopCounter
from vitral.models.resnet import ResidualNetwork


class Part(Config):
    """One part of a model at work on one image."""

    name: str
    level: int  # 0 for a part of the model, 1 for a part of that part
    shape: tuple[int, ...]  # of what it passes on
    parameters: int
    multiply_adds: int
    kept: int  # bytes that training holds until the backward pass


class MemoryUse(Config):
    """Bytes that a batch takes: weights, activations, and in training gradients and the two moments of AdamW."""

    batch: int
    inference: int
    training: int


class Description(Config):
    """A model, counted."""

    image: Size
    channels: int
    tokens: tuple[int, int, int, int]  # class tokens, registers, rows and columns of patches
    parts: tuple[Part, ...]
    parameters: int
    multiply_adds: int
    multiply_adds_in_full: int  # with every token of the last block, whether it is read or not
    kept: int
    needs: tuple[MemoryUse, ...]
    equations: tuple[str, ...]
    config: Vit | Resnet

    def __str__(self) -> str:
        """The table from image to answer, the memory, and the equations."""
        return as_text(self)


Row = tuple[str, ...]


def as_text(description: Description) -> str:
    """The table from image to answer, the memory, and the equations."""
    channels, size = description.channels, description.image
    image = ("image", f"{channels} x {size.height} x {size.width}", "", "", "")
    rows: list[Row] = [("part", "passes on", "parameters", "multiply-adds", "kept in training"), image]
    rows += [table_row(part) for part in description.parts if part.name == "pool" or does_something(part)]
    total = (f"{description.parameters:,}", f"{description.multiply_adds:,}", format_bytes(description.kept))
    rows.append(("total for one image", "", *total))
    needs: list[Row] = [("a batch of", "inference", "training")]
    needs += [
        (str(need.batch), format_bytes(need.inference), format_bytes(need.training)) for need in description.needs
    ]
    table = align_columns(rows, left=2)
    if description.multiply_adds_in_full > description.multiply_adds:
        full = f"{description.multiply_adds_in_full:,}"
        table += (
            f"\nOnly the class token is read, so the last block computes its row alone; in full: {full} multiply-adds."
        )
    return "\n\n".join(
        [table, describe_sequence(description), align_columns(needs, left=1), "\n".join(description.equations)]
    )


def does_something(part: Part) -> bool:
    return part.parameters > 0 or part.multiply_adds > 0 or part.kept > 0


def table_row(part: Part) -> Row:
    shape = " x ".join(map(str, part.shape))
    numbers = f"{part.parameters:,}" if part.parameters else "", f"{part.multiply_adds:,}" if part.multiply_adds else ""
    return ("  " * part.level + part.name, shape, *numbers, format_bytes(part.kept) if part.kept > 0 else "")


def describe_sequence(description: Description) -> str:
    cls, registers, rows, columns = description.tokens
    terms = [f"{cls} class token"] if cls else []
    terms += [f"{registers} registers"] if registers else []
    terms.append(f"{rows} x {columns} patches")
    return f"sequence: {' + '.join(terms)} = {cls + registers + rows * columns} tokens"


def format_bytes(size: int) -> str:
    """Bytes as a person says them."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= 0.99995 * scale:  # what would be rounded up to this unit is of this unit
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def align_columns(rows: list[Row], left: int) -> str:
    """Columns side by side, the first `left` of them flush left, the rest flush right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


BATCHES = (1, 64)
BYTES = 4  # of a float32


class TableEntry(NamedTuple):
    """A row to be: the modules that it sums over."""

    name: str
    level: int
    modules: tuple[nn.Module, ...]


def describe(model: str | Vit | Resnet, *settings: str) -> Description:
    """A model by name or config, counted on images without values: `print(describe("B/16", "image_size=384"))`."""
    config = model_config(model, *settings)
    with FakeTensorMode():
        frame = config.build_empty("cpu")
        parts, whole = count_parts(frame, config)
        answering = sum(part.multiply_adds for part in parts if part.name in ("pool", "head"))
        full = count_run(frame, config, 1, frame.forward_features).multiply_adds + answering
        needs = tuple(memory_use(frame, config, batch) for batch in BATCHES)
    layout = config.layout(config.image_size)
    return Description(
        image=config.image_size,
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
        frame = model.build_empty("cpu")
        return count_run(frame, model, 1, frame.forward_features if in_full else frame.forward).multiply_adds


def count_parts(model: Model, config: Vit | Resnet) -> tuple[tuple[Part, ...], Part]:
    """The rows of the table, and the model as one row."""
    images, listed = empty_images(config, 1), table_entries(model)
    ledger = FlopCounter([*model.parameters(), images])
    parts = {module for entry in listed if entry.level == 0 for module in entry.modules}
    tape = CounterState(ledger)
    meters = {module: ModuleCounter(module, tape, is_part=module in parts) for module in model.modules()}
    with ledger:
        model(images)
    for meter in meters.values():
        meter.stop()
    return tuple(sum_entry(entry, meters) for entry in listed), sum_entry(TableEntry("model", 0, (model,)), meters)


class CounterState:
    """A ledger, and what lived when the last part ended."""

    def __init__(self, ledger: FlopCounter) -> None:
        self.ledger = ledger
        self.live_before = 0


class ModuleCounter:
    """What the ledger gained while a module ran, over all its runs.

    A part of the model is charged from the end of the part before it, so that what one part leaves for the next to
    free is counted once and the parts add up to the model.
    """

    def __init__(self, module: nn.Module, tape: CounterState, is_part: bool) -> None:
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


def sum_entry(entry: TableEntry, meters: dict[nn.Module, ModuleCounter]) -> Part:
    found = [meters[module] for module in entry.modules]
    return Part(
        name=entry.name,
        level=entry.level,
        shape=found[-1].shape,
        parameters=sum(weight.numel() for module in entry.modules for weight in module.parameters()),
        multiply_adds=sum(meter.multiply_adds for meter in found),
        kept=sum(meter.kept for meter in found),
    )


def table_entries(model: Model) -> list[TableEntry]:
    """The parts in the order in which an image passes them."""
    if isinstance(model, ResidualNetwork):
        return [*child_entries(model.body, level=0), TableEntry("head", 0, (model.head,))]
    assert isinstance(model, VisionTransformer)
    blocks = list(model.blocks)
    rows = [TableEntry("stem", 0, (model.stem,)), *child_entries(model.stem, level=1)]
    rows += [TableEntry(prefix_name(model), 0, (model.prefix,)), TableEntry("position", 0, (model.position,))]
    if model.config.tokens.norm:
        rows.append(TableEntry("first norm", 0, (model.first_norm,)))
    rows += [TableEntry("block 1", 0, (blocks[0],)), *child_entries(blocks[0], level=1)]
    if len(blocks) > 2:
        name = f"blocks 2 to {len(blocks) - 1}" if len(blocks) > 3 else "block 2"
        rows.append(TableEntry(name, 0, tuple(blocks[1:-1])))
    if len(blocks) > 1:
        rows.append(TableEntry(f"block {len(blocks)}", 0, (blocks[-1],)))
    return [
        *rows,
        TableEntry("norm", 0, (model.norm,)),
        TableEntry("pool", 0, (model.pool,)),
        TableEntry("head", 0, (model.head,)),
    ]


def prefix_name(model: VisionTransformer) -> str:
    names = ["class token"] * model.config.tokens.cls + ["registers"] * (model.config.tokens.registers > 0)
    return " and ".join(names) or "no tokens but the patches"


def child_entries(module: nn.Module, level: int) -> list[TableEntry]:
    """The named children that do something, those of a hybrid's body taken apart into root and stages."""
    rows: list[TableEntry] = []
    for name, child in module.named_children():
        if name == "body":
            rows += child_entries(child, level)
        elif name == "stages":
            rows += [
                TableEntry(f"stage {index}", level, (stage,)) for index, stage in enumerate(child.children(), start=1)
            ]
        elif any(True for _ in child.parameters()):
            rows.append(TableEntry(name.replace("_", " "), level, (child,)))
    return rows


def memory_use(model: Model, config: Vit | Resnet, batch: int) -> MemoryUse:
    weights = BYTES * sum(weight.numel() for weight in model.parameters())
    pixels = BYTES * batch * config.channels * config.image_size.height * config.image_size.width
    inference = count_run(model.eval(), config, batch, torch.no_grad()(model.forward)).peak
    training = count_run(model.train(), config, batch, lambda images: model(images).sum().backward()).peak
    model.zero_grad()
    return MemoryUse(batch=batch, inference=weights + pixels + inference, training=3 * weights + pixels + training)


def count_run(model: Model, config: Vit | Resnet, batch: int, use: Callable[[Tensor], object]) -> FlopCounter:
    """The ledger of one use of the model; weights and images are not in it."""
    images = empty_images(config, batch)
    with FlopCounter([*model.parameters(), images]) as ledger:
        use(images)
    return ledger


def empty_images(config: Vit | Resnet, batch: int) -> Tensor:
    return torch.empty(batch, config.channels, *config.image_size)  # (B, C, H, W)
