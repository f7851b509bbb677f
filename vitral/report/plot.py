"""A curve in plain text, for terminals and logs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vitral.report.chart import round_axis

WIDTH, HEIGHT = 56, 9  # letters and lines between the axes


class Spot(NamedTuple):
    """A point of a curve, and the letters that mark it."""

    x: float
    y: float
    mark: str


def draw_plot(spots: Sequence[Spot], across: str, upward: Callable[[float], str]) -> list[str]:
    """The spots between their axes: `upward` writes the numbers at the left, `across` names those below.

    Where marks would lie on each other, the earlier spot's stays.
    """
    rightward = round_axis(min(spot.x for spot in spots), max(spot.x for spot in spots), WIDTH - 1, 6)
    height = round_axis(min(spot.y for spot in spots), max(spot.y for spot in spots), HEIGHT - 1, 4)
    paper = [[" "] * (WIDTH + 4) for _ in range(HEIGHT)]
    for spot in spots:
        line, start = paper[HEIGHT - 1 - round(height.place(spot.y))], round(rightward.place(spot.x))
        place = slice(start, start + len(spot.mark))
        if not "".join(line[place]).strip():
            line[place] = spot.mark
    numbers = {HEIGHT - 1 - round(height.place(value)): upward(value) for value in height.ticks()}
    margin = max(map(len, numbers.values()))
    lines = [f"{numbers.get(row, ''):>{margin}} |{''.join(letters)}".rstrip() for row, letters in enumerate(paper)]
    below = [" "] * (WIDTH + 8)
    for value in rightward.ticks():
        text = f"{value:g}"
        start = round(rightward.place(value))
        below[start : start + len(text)] = text
    empty = " " * (margin + 2)
    return [*lines, f"{' ' * margin} +{'-' * WIDTH}", f"{empty}{''.join(below).rstrip()}  {across}"]
