"""Cards for notebooks: every kind of block, and nothing that is handed in becomes HTML."""

import re
from pathlib import Path

from tests.data.reader import Reader
from tests.runs.report.stories import measured
from vitral.html.notebook import Block, Charts, Link, Plot, Table, notebook_card
from vitral.runs.report.charts import metric_charts

ODD = '<b onclick="x">&\'\u202e'


def test_a_card_shows_each_kind_of_block() -> None:
    table = Table([("class", "recall"), ("cat", "60%")], has_header=True)
    charts = Charts(metric_charts(measured())[:2])
    blocks: list[Block] = [
        "a line",
        "",
        table,
        Table([("top-1", "60%")]),
        Plot(["|  *", "+---"]),
        charts,
        Link("page", Path("a b")),
    ]
    text = notebook_card("title", {"heading": blocks})
    reader = Reader(text)
    for told in ("title", "heading", "a line", "class", "60%", "|  *", "page"):
        assert told in reader.text
    tags = [tag for tag, _ in reader.tags]
    assert (tags.count("table"), tags.count("pre"), tags.count("svg"), tags.count("a")) == (2, 1, 2, 1)
    assert [attributes["href"] for tag, attributes in reader.tags if tag == "a"] == ["a%20b"]
    assert tags.count("th") == 2 + 1 + 1, "the header, and the first cell of each other row"
    assert tags.count("div") == text.count("</div>")


def test_a_card_needs_no_style_sheet_script_or_network() -> None:
    text = notebook_card("title", {"": [Charts(metric_charts(measured())), Plot(["x"])]})
    assert not re.search(r"https?://|<script|<style|<link|url\(|class=", text)


def test_nothing_handed_in_can_become_part_of_a_card() -> None:
    blocks: list[Block] = [
        ODD,
        Table([(ODD, ODD)]),
        Plot([ODD]),
        Link(ODD, Path("javascript:x")),
        Link(ODD, Path('"><i>')),
    ]
    text = notebook_card(ODD, {ODD: blocks})
    reader = Reader(text)
    assert not any("onclick" in attributes for _, attributes in reader.tags)
    assert not any(tag in ("b", "i") for tag, _ in reader.tags)
    assert "\u202e" not in text
    assert not any(attributes["href"].startswith("javascript:") for tag, attributes in reader.tags if tag == "a")
