"""What is known of a model once it is counted, and how that reads on a terminal."""

from vitral.config import Config, Size
from vitral.model import Resnet, Vit


class Part(Config):
    """One part of a model at work on one image."""

    name: str
    level: int  # 0 for a part of the model, 1 for a part of that part
    shape: tuple[int, ...]  # of what it passes on
    parameters: int
    multiply_adds: int
    kept: int  # bytes that training holds until the backward pass


class Need(Config):
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
    needs: tuple[Need, ...]
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
    rows += [line(part) for part in description.parts if part.name == "pool" or does_something(part)]
    total = (f"{description.parameters:,}", f"{description.multiply_adds:,}", amount(description.kept))
    rows.append(("total for one image", "", *total))
    needs: list[Row] = [("a batch of", "inference", "training")]
    needs += [(str(need.batch), amount(need.inference), amount(need.training)) for need in description.needs]
    table = aligned(rows, left=2)
    if description.multiply_adds_in_full > description.multiply_adds:
        full = f"{description.multiply_adds_in_full:,}"
        table += (
            f"\nOnly the class token is read, so the last block computes its row alone; in full: {full} multiply-adds."
        )
    return "\n\n".join([table, sequence(description), aligned(needs, left=1), "\n".join(description.equations)])


def does_something(part: Part) -> bool:
    return part.parameters > 0 or part.multiply_adds > 0 or part.kept > 0


def line(part: Part) -> Row:
    shape = " x ".join(map(str, part.shape))
    numbers = f"{part.parameters:,}" if part.parameters else "", f"{part.multiply_adds:,}" if part.multiply_adds else ""
    return ("  " * part.level + part.name, shape, *numbers, amount(part.kept) if part.kept > 0 else "")


def sequence(description: Description) -> str:
    cls, registers, rows, columns = description.tokens
    terms = [f"{cls} class token"] if cls else []
    terms += [f"{registers} registers"] if registers else []
    terms.append(f"{rows} x {columns} patches")
    return f"sequence: {' + '.join(terms)} = {cls + registers + rows * columns} tokens"


def amount(size: int) -> str:
    """Bytes as a person says them."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= 0.99995 * scale:  # what would be rounded up to this unit is of this unit
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def aligned(rows: list[Row], left: int) -> str:
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
