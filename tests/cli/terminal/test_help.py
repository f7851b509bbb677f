"""The help as a person reads it: groups, defaults, examples, widths."""

import re
import shlex
from typing import Any

import pytest
import typer

from vitral import cli
from vitral.cli.terminal import help
from vitral.cli.terminal.help import REST, VERB_GROUPS, WIDEST, Program, option_help

PROGRAM = typer.main.get_command(cli.app)
assert isinstance(PROGRAM, Program)
VERBS: dict[str, Any] = dict(PROGRAM.commands)
OPTIONS = [
    (name, each)
    for name, command in VERBS.items()
    for each in command.params
    if each.param_type_name == "option" and not (each.is_flag and each.callback)
]
PARAMETERS = [(name, each) for name, command in VERBS.items() for each in command.params]


def show_help(command: Any, columns: int = 80) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        context = command.make_context(command.name, [], resilient_parsing=True, max_content_width=WIDEST)
        return str(command.get_help(context))


def test_the_verbs_stand_in_the_order_of_use() -> None:
    assert isinstance(PROGRAM, Program)
    shown = re.findall(r"^  ([a-z]+)  ", show_help(PROGRAM).partition("Options:")[0], re.MULTILINE)
    assert shown == [verb for verbs in VERB_GROUPS.values() for verb in verbs if verb in PROGRAM.commands]


def test_the_overview_builds_no_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(help.VERBS, "built", {})
    assert "explain" in show_help(PROGRAM)
    assert not help.VERBS.built
    assert help.VERBS["train"].name == "train"
    assert list(help.VERBS.built) == ["train"]


def test_every_verb_has_a_group() -> None:
    assert isinstance(PROGRAM, Program)
    assert REST not in PROGRAM.grouped()


def test_each_group_is_a_folder_with_a_file_for_each_verb() -> None:
    assert isinstance(PROGRAM, Program)
    homes = {name: VERBS[name].callback.__module__.rpartition(".") for name in VERBS}
    assert {name: file for name, (_, _, file) in homes.items()} == {name: name for name in VERBS}
    folders = [{homes[name][0] for name in names} for names in PROGRAM.grouped().values()]
    assert [len(folder) for folder in folders] == [1] * len(folders)
    assert len(set.union(*folders)) == len(folders)


@pytest.mark.parametrize("columns", [80, 100])
def test_each_verb_is_one_whole_line(columns: int) -> None:
    shown = show_help(PROGRAM, columns)
    for name, command in VERBS.items():
        summary = command.get_short_help_str(1000)
        assert not summary.endswith("...")
        assert re.search(rf"^  {name} +{re.escape(summary)}$", shown, re.MULTILINE)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_help_is_cut_or_too_long(verb: str, columns: int) -> None:
    shown = show_help(VERBS[verb], columns)
    assert max(map(len, shown.splitlines())) <= columns
    joined = re.sub(r"(?<=\w)-\n +", "-", shown)  # a line may end at the hyphen of a name
    for parameter in VERBS[verb].params:
        text = option_help(parameter).replace("\xa0", " ") if parameter.param_type_name == "option" else parameter.help
        assert " ".join(text.split()) in " ".join(joined.split())


@pytest.mark.parametrize(("verb", "parameter"), PARAMETERS, ids=[f"{verb} {each.name}" for verb, each in PARAMETERS])
def test_every_parameter_says_what_it_does_in_a_sentence(verb: str, parameter: Any) -> None:
    assert re.match(r"[A-Z]", parameter.help)
    assert parameter.help.endswith(".")
    assert "efault" not in parameter.help  # it stands at the end, in brackets


@pytest.mark.parametrize(("verb", "option"), OPTIONS, ids=[f"{verb} {each.opts[0]}" for verb, each in OPTIONS])
def test_every_option_ends_with_its_default(verb: str, option: Any) -> None:
    assert option.metavar or option.is_flag
    assert option.required or re.search(r"\. \[default:\xa0.+\]$", option_help(option))


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_of_a_verb_can_be_typed(verb: str) -> None:
    examples = (VERBS[verb].epilog or "").splitlines()
    assert examples
    for example in examples:
        program, name, *arguments = shlex.split(example)
        assert (program, name) == ("vitral", verb)
        VERBS[verb].make_context(verb, arguments)  # raises for an unknown option or a wrong value
        assert len(example) <= 78
