"""docs/errata.md: every item is checked by code that runs, or names the publication that settles it."""

import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parent.parent / "docs" / "errata.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOURCE = re.compile(r"Source: arXiv \d{4}\.\d{5}")
BEGIN, *SECTIONS = re.split(r"^### ", PAGE, flags=re.MULTILINE)
ITEMS = {section.partition("\n")[0]: section.partition("\n## ")[0] for section in SECTIONS}

# A word of the title of each item that the page must have.
REQUIRED = (
    "Pre-norm", "E is (P² C) x D", "Position 0", "JFT", "H/14", "Patch sizes", "Two heads", "Few-shot", "Subsets",
    "stage 3", "Mean pooling", "Queries", "Zeros", "H is the height", "inverse square", "50176", "core-days",
    "Non-local", "VTAB", "Axial", "2-D positions", "FractalNet",
)  # fmt: skip


def blocks(section: str) -> list[str]:
    return BLOCK.findall(section)


def run(*sources: str) -> None:
    """Run blocks of the page one after another, as a reader would."""
    names: dict[str, object] = {}
    for source in sources:
        exec(compile(source, "docs/errata.md", "exec"), names)


def test_the_page_has_every_item_once() -> None:
    found = [[title for title in ITEMS if word in title] for word in REQUIRED]
    assert [len(titles) for titles in found] == [1] * len(REQUIRED)
    assert {titles[0] for titles in found} == set(ITEMS)


def test_one_block_before_the_items_is_shared() -> None:
    assert len(blocks(BEGIN)) == 1


@pytest.mark.parametrize("title", ITEMS)
def test_an_item_has_a_check_or_a_citation(title: str) -> None:
    section = ITEMS[title]
    assert "Often written:" in section
    assert "Right:" in section
    assert all("assert " in block for block in blocks(section))
    assert blocks(section) or SOURCE.search(section)
    if "Only a citation settles" in " ".join(section.split()):
        assert SOURCE.search(" ".join(section.split()))


@pytest.mark.parametrize("title", [title for title, section in ITEMS.items() if blocks(section)])
def test_the_check_of_an_item_passes(title: str) -> None:
    for block in blocks(ITEMS[title]):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            run(*blocks(BEGIN), block)


def test_a_wrong_statement_is_found() -> None:
    with pytest.raises(AssertionError):
        run("assert 224 * 224 == 50176 ** 2")
