"""Curves in plain text."""

from vitral.evaluation.results import HEIGHT, WIDTH, PlotPoint, draw_plot


def percent(share: float) -> str:
    return f"{100 * share:g}%"


def test_spots_stand_between_their_axes() -> None:
    lines = draw_plot([PlotPoint(10, 0.9, "0"), PlotPoint(15, 0.9, "4"), PlotPoint(20, 0.8, "16")], "images/s", percent)
    assert lines[0] == "90% |0" + " " * 27 + "4"
    assert lines[HEIGHT - 1] == "80% |" + " " * (WIDTH - 1) + "16"
    assert lines[HEIGHT] == "    +" + "-" * WIDTH
    assert lines[-1].split() == ["10", "12", "14", "16", "18", "20", "images/s"]
    assert len(lines) == HEIGHT + 2


def test_marks_do_not_cover_each_other() -> None:
    lines = draw_plot([PlotPoint(1, 1, "first"), PlotPoint(1, 1, "second"), PlotPoint(2, 2, "x")], "", str)
    assert lines[HEIGHT - 1].endswith("|first")


def test_a_flat_curve_and_a_single_spot_are_drawn() -> None:
    for spots in ([PlotPoint(5, 0.5, "a"), PlotPoint(9, 0.5, "b")], [PlotPoint(5, 0.0, "a")]):
        drawn = "".join(draw_plot(spots, "x", percent))
        assert all(spot.label in drawn for spot in spots)
