"""`vitral describe`: every shape, parameter, multiply-add and byte of a model, from image to prediction."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.hooks import RemovableHandle

from vitral.core.config import Config, Size
from vitral.core.custom import trusted
from vitral.core.documents import is_document
from vitral.core.errors import ConfigError
from vitral.core.manifest import FileStatus
from vitral.explanation.walkthrough.equations import equations
from vitral.html.text import align_columns
from vitral.models import Model, Resnet, VisionTransformer, Vit, model_config
from vitral.models.hooks import FlopCounter
from vitral.models.registry import ModelLike, ModelOptions
from vitral.models.resnet import ResidualNetwork
from vitral.weights.hub import PREFIX, expand_short_name
from vitral.weights.load import OpenedModel, open_model
from vitral.weights.reader import READERS

log = logging.getLogger("vitral")
BATCHES = (1, 64)
BYTES = 4  # of a float32
Row = tuple[str, ...]


class Part(Config):
    """One part of a model, applied to one image."""

    name: str
    level: int  # 0 for a part of the model, 1 for a part of that part
    shape: tuple[int, ...]  # of its output
    parameters: int
    multiply_adds: int
    kept: int  # bytes that training holds until the backward pass


class MemoryUse(Config):
    """Bytes that a batch takes: weights, activations, and in training gradients and the two moments of AdamW."""

    batch: int
    inference: int
    training: int


class Description(Config):
    """The parts of a model and their cost."""

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
    files: FileStatus | Literal["none"] = "none"  # whether those that it was loaded from were verified

    def __str__(self) -> str:
        """The table from image to prediction, the memory, the equations, and whether its files were verified."""
        rows: list[Row] = [("part", "passes on", "parameters", "multiply-adds", "kept in training")]
        rows.append(("image", f"{self.channels} x {self.image.height} x {self.image.width}", "", "", ""))
        rows += [table_row(part) for part in self.parts if part.name == "pool" or is_counted(part)]
        total = f"{self.parameters:,}", f"{self.multiply_adds:,}", format_bytes(self.kept)
        table = "\n".join(align_columns([*rows, ("total for one image", "", *total)], right=range(2, 5)))
        if self.multiply_adds_in_full > self.multiply_adds:
            table += "\nOnly the class token is read, so the last block computes its row alone; in full: "
            table += f"{self.multiply_adds_in_full:,} multiply-adds."
        cls, registers, *grid = self.tokens
        terms = [f"{cls} class token"] * bool(cls) + [f"{registers} registers"] * bool(registers)
        terms.append(f"{grid[0]} x {grid[1]} patches")
        sequence = f"sequence: {' + '.join(terms)} = {cls + registers + grid[0] * grid[1]} tokens"
        needs = [(str(need.batch), format_bytes(need.inference), format_bytes(need.training)) for need in self.needs]
        memory = align_columns([("a batch of", "inference", "training"), *needs], right=(1, 2))
        files = [] if self.files == "none" else [f"files: {self.files}"]
        return "\n\n".join([table, sequence, "\n".join(memory), "\n".join(self.equations), *files])


def is_counted(part: Part) -> bool:
    return part.parameters > 0 or part.multiply_adds > 0 or part.kept > 0


def table_row(part: Part) -> Row:
    shape, kept = " x ".join(map(str, part.shape)), format_bytes(part.kept) if part.kept > 0 else ""
    counts = [f"{count:,}" if count else "" for count in (part.parameters, part.multiply_adds)]
    return ("  " * part.level + part.name, shape, *counts, kept)


def format_bytes(size: int) -> str:
    """`1.2 GB`, `345.6 MB`, `7.8 KB` or `90 bytes`."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= 0.99995 * scale:  # what would be rounded up to this unit is of this unit
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


class TableEntry(NamedTuple):
    """A row of the table, and the modules that it sums over."""

    name: str
    level: int
    modules: tuple[nn.Module, ...]


def describe(
    model: ModelLike,
    settings: Mapping[str, object] | None = None,
    *,
    trust: bool = False,
    **options: Unpack[ModelOptions],
) -> Description:
    """Every shape, parameter, multiply-add and byte of a model: `print(describe("B/16", image_size=384))`.

    The model is a name, a config, a JSON or YAML file of a config, or weights that `vitral.load` takes. A model without
    weights is not allocated. `trust` allows settings or files that name classes of your own to import them.
    """
    with trusted(trust):
        opened = _open_weights(model)
        config = model_config(opened.loaded.bundle.model if opened else _known(model), settings, **options)
    for line in opened.messages if opened else ():
        log.info(line)
    with FakeTensorMode():
        frame = config.build_empty("cpu")
        parts, whole = count_parts(frame, config)
        readout = sum(part.multiply_adds for part in parts if part.name in ("pool", "head"))
        full = count_run(frame, config, 1, frame.forward_features).multiply_adds + readout
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
        files=opened.files if opened else "none",
    )


def _open_weights(model: ModelLike) -> OpenedModel | None:
    """The weights that a name or path means; None if it means a model without weights."""
    if not isinstance(model, str | Path) or is_document(model):
        return None
    name = str(model)
    on_hub = expand_short_name(name).startswith(PREFIX)
    return open_model(model) if on_hub or name.endswith(READERS) or Path(name).expanduser().exists() else None


def _known(model: ModelLike) -> Vit | Resnet:
    """The config of a model. The hint for a name that looks like a path says that there is no such file."""
    try:
        return model_config(model)
    except ConfigError as error:
        if error.code != "config.unknown_name" or is_document(model) or not {"/", os.sep} & set(str(model)):
            raise
        hint = f"there is no such file or folder either; {error.hint}"
        raise ConfigError(error.message, code=error.code, where=error.where, hint=hint) from None


@cache
def multiply_adds(model: Vit | Resnet, in_full: bool) -> int:
    """Multiply-adds of a forward pass for one image: of the prediction alone, or of all tokens to the last layer."""
    with FakeTensorMode():
        frame = model.build_empty("cpu")
        return count_run(frame, model, 1, frame.forward_features if in_full else frame.forward).multiply_adds


def count_parts(model: Model, config: Vit | Resnet) -> tuple[tuple[Part, ...], Part]:
    """The rows of the table, and the model as one row."""
    images, entries = torch.empty(1, config.channels, *config.image_size), table_entries(model)  # (1, C, H, W)
    ledger = FlopCounter([*model.parameters(), images])
    counter = ModuleCounter(ledger, {module for entry in entries if entry.level == 0 for module in entry.modules})
    hooks = [hook for module in model.modules() for hook in counter.register(module)]
    with ledger:
        model(images)
    for hook in hooks:
        hook.remove()
    whole = counter.sum_entry(TableEntry("model", 0, (model,)))
    return tuple(map(counter.sum_entry, entries)), whole


class ModuleCounter:
    """What a counter gained while each module ran, over all its runs.

    A part of the model is charged from the end of the part before it, so that what one part leaves for the next to
    free is counted once and the parts add up to the model.
    """

    def __init__(self, ledger: FlopCounter, parts: set[nn.Module]) -> None:
        self.ledger, self.parts = ledger, parts
        self.shapes: dict[nn.Module, tuple[int, ...]] = {}
        self.multiply_adds, self.kept = Counter[nn.Module](), Counter[nn.Module]()
        self.live_before = 0  # bytes that lived when the last part ended

    def register(self, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        return module.register_forward_pre_hook(self._before), module.register_forward_hook(self._after)

    def _before(self, module: nn.Module, given: object) -> None:
        self.multiply_adds[module] -= self.ledger.multiply_adds
        self.kept[module] -= self.live_before if module in self.parts else self.ledger.live

    def _after(self, module: nn.Module, given: object, result: object) -> None:
        self.multiply_adds[module] += self.ledger.multiply_adds
        self.kept[module] += self.ledger.live
        if module in self.parts:
            self.live_before = self.ledger.live
        if isinstance(result, Tensor):
            self.shapes[module] = tuple(result.shape[1:])

    def sum_entry(self, entry: TableEntry) -> Part:
        return Part(
            name=entry.name,
            level=entry.level,
            shape=self.shapes.get(entry.modules[-1], ()),
            parameters=sum(weight.numel() for module in entry.modules for weight in module.parameters()),
            multiply_adds=sum(self.multiply_adds[module] for module in entry.modules),
            kept=sum(self.kept[module] for module in entry.modules),
        )


def table_entries(model: Model) -> list[TableEntry]:
    """The parts in the order in which an image passes them."""
    if isinstance(model, ResidualNetwork):
        return [*child_entries(model.body, level=0), TableEntry("head", 0, (model.head,))]
    assert isinstance(model, VisionTransformer)
    tokens, blocks = model.config.tokens, list(model.blocks)
    prefix = " and ".join(["class token"] * tokens.cls + ["registers"] * (tokens.registers > 0))
    rows = [TableEntry("stem", 0, (model.stem,)), *child_entries(model.stem, level=1)]
    rows += [TableEntry(prefix or "no tokens but the patches", 0, (model.prefix,))]
    rows += [TableEntry("position", 0, (model.position,))]
    rows += [TableEntry("first norm", 0, (model.first_norm,))] if tokens.norm else []
    rows += [TableEntry("block 1", 0, (blocks[0],)), *child_entries(blocks[0], level=1)]
    if len(blocks) > 2:
        name = f"blocks 2 to {len(blocks) - 1}" if len(blocks) > 3 else "block 2"
        rows.append(TableEntry(name, 0, tuple(blocks[1:-1])))
    if len(blocks) > 1:
        rows.append(TableEntry(f"block {len(blocks)}", 0, (blocks[-1],)))
    last = {"norm": model.norm, "pool": model.pool, "head": model.head}
    return rows + [TableEntry(name, 0, (module,)) for name, module in last.items()]


def child_entries(module: nn.Module, level: int) -> list[TableEntry]:
    """The named children that have weights; those of a hybrid's body are split into root and stages."""
    rows: list[TableEntry] = []
    for name, child in module.named_children():
        if name == "body":
            rows += child_entries(child, level)
        elif name == "stages":
            stages = enumerate(child.children(), start=1)
            rows += [TableEntry(f"stage {number}", level, (stage,)) for number, stage in stages]
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
    """The counter of one use of the model; weights and images are not counted."""
    images = torch.empty(batch, config.channels, *config.image_size)  # (B, C, H, W)
    with FlopCounter([*model.parameters(), images]) as ledger:
        use(images)
    return ledger
