"""README and docs: commands, options, links and Python names in them exist today."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import vitral
from vitral.cli import app

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "vitral").rglob("*.py"))
}
FENCE = re.compile(r"^ *```([a-z]*)\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?<![\w.\[])vitral +([a-z]+)\b((?: +(?:[^\s|;#>]+|'[^']*'))*)")
PLACEHOLDERS = {"is", "and", "run", "runs", "trains"}  # words that follow the name in a sentence


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages."""
    return [code for language, code in FENCE.findall(page) if language in languages]


def spans(page: str) -> list[str]:
    """What stands between backticks in the text, on one line each."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", page))]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Verb and options of each `vitral VERB ...` in a text of code."""
    for verb, rest in COMMAND.findall(re.sub(r"\\\n\s*", " ", text)):
        yield verb, re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", rest)


def page_commands(page: str) -> Iterator[tuple[str, list[str]]]:
    for code in [*(code for language, code in FENCE.findall(page) if language != "python"), *spans(page)]:
        yield from commands(code)


def source_commands(source: str) -> Iterator[tuple[str, list[str]]]:
    """The commands in the strings of a module that name an option: hints, help texts and docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (found for found in commands(node.value) if found[1])


def known_options() -> dict[str, set[str]]:
    """The options of each verb; global options may follow the verb too."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    shared = {name for each in group.params for name in each.opts} | {"--help", "-h"}
    return {
        verb: shared | {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        for verb, command in group.commands.items()
    }


OPTIONS = known_options()


def command_breaches(found: Iterator[tuple[str, list[str]]]) -> list[str]:
    """Verbs and options that do not exist."""
    wrong = []
    for verb, options in found:
        if verb not in OPTIONS and verb not in PLACEHOLDERS:
            wrong.append(f"vitral {verb}")
        elif verb in OPTIONS:
            wrong += [f"vitral {verb} {option}" for option in options if option not in OPTIONS[verb]]
    return wrong


@pytest.mark.parametrize("path", PAGES)
def test_every_command_on_a_page_exists_with_its_options(path: str) -> None:
    assert command_breaches(page_commands(PAGES[path])) == []


def test_every_command_in_a_message_or_docstring_exists_with_its_options() -> None:
    assert {path: found for path, text in SOURCES.items() if (found := command_breaches(source_commands(text)))} == {}


def test_a_command_that_does_not_exist_is_found() -> None:
    block = "```sh\nvitral train x \\\n  --epoks 1 | vitral predict r - --tops 3  # --no\n```\n"
    page = f"`vitral trane x` and\n{block}`vitral train\n--lr 1`"
    assert command_breaches(page_commands(page)) == ["vitral train --epoks", "vitral predict --tops", "vitral trane"]
    assert command_breaches(source_commands('hint = "run vitral export MODEL --too onnx"')) == ["vitral export --too"]


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_breaches(path: str, page: str) -> list[str]:
    """Links to files or headings that do not exist."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = ((ROOT / path).parent / name).resolve() if name else ROOT / path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("path", PAGES)
def test_every_link_on_a_page_leads_somewhere(path: str) -> None:
    assert link_breaches(path, PAGES[path]) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = "[a](docs/none.md) [b](README.md#nothing) [c](README.md#install) [d](https://example.org)"
    assert link_breaches("README.md", page) == ["docs/none.md", "README.md#nothing"]


def name_breaches(code: str) -> list[str]:
    """Names of `vitral` in a block of Python that are not public, and imports that fail."""
    wrong = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "vitral":
            wrong += [f"vitral.{node.attr}"] if node.attr not in vitral.__all__ else []
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vitral":
            module = __import__(str(node.module), fromlist=["_"])
            wrong += [f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name)]
    return wrong


@pytest.mark.parametrize("path", PAGES)
def test_every_name_of_vitral_in_the_python_on_a_page_is_public(path: str) -> None:
    assert [name for code in blocks(PAGES[path], "python") for name in name_breaches(code)] == []


def test_a_name_that_is_not_public_is_found() -> None:
    code = "import vitral\nvitral.trane(1)\nfrom vitral.core.config import Size, Sizes\nvitral.train(2)"
    assert name_breaches(code) == ["vitral.core.config.Sizes", "vitral.trane"]


def test_every_page_of_the_docs_is_linked_in_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)", PAGES["README.md"]))
    assert sorted(set(PAGES) - linked - {"README.md", "CONTRIBUTING.md"}) == []


def test_pictures_of_the_gallery_are_small() -> None:
    pictures = list((ROOT / "docs" / "gallery").iterdir())
    assert pictures
    assert {each.name for each in pictures if each.stat().st_size > 300_000} == set()


def test_every_module_in_the_architecture_exists() -> None:
    modules = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", PAGES["docs/architecture.md"])
    assert len(modules) > 30
    assert [name for name in modules if not (ROOT / "vitral" / name).exists() and not (ROOT / name).exists()] == []
