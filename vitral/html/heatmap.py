"""The colors of heat maps, for pictures and for the script `heatmap.js` of the pages."""

from markupsafe import Markup

from vitral.html.page import script_json

# Color scales from 0 to 1 and from 0 to -1; both start dark.
POSITIVE_COLORS = ((0, 0, 4), (33, 12, 74), (86, 16, 110), (136, 34, 106), (187, 55, 84), (228, 90, 49), (249, 142, 8),
        (250, 193, 39), (252, 255, 164))  # fmt: skip
NEGATIVE_COLORS = ((0, 0, 4), (10, 36, 78), (20, 84, 140), (70, 160, 214), (214, 243, 255))


def color_stops() -> Markup:
    """The colors as JSON, for the element `colors` of a page."""
    return script_json({"positive": POSITIVE_COLORS, "negative": NEGATIVE_COLORS})
