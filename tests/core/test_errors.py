import pickle

import pytest

from vitral.core.errors import (
    ConfigError,
    DataError,
    VitralError,
    WeightsError,
    did_you_mean,
    format_choices,
    suggest_choice,
)


def test_a_message_reads_where_what_and_remedy_in_one_line() -> None:
    error = DataError("truncated after 12 KB", code="data.truncated_image", where="photos/cat/07.jpg", hint="remove it")
    assert str(error) == "photos/cat/07.jpg: truncated after 12 KB; remove it"


@pytest.mark.parametrize(
    ("where", "hint", "message"),
    [("", "", "no such model"), ("B/17", "", "B/17: no such model"), ("", "use B/16", "no such model; use B/16")],
)
def test_parts_that_are_empty_leave_no_trace(where: str, hint: str, message: str) -> None:
    assert str(VitralError("no such model", code="file.exists", where=where, hint=hint)) == message


@pytest.mark.parametrize(("kind", "code"), [(VitralError, 1), (ConfigError, 2), (DataError, 3), (WeightsError, 1)])
def test_each_error_has_its_exit_code_and_is_a_vitral_error(kind: type[VitralError], code: int) -> None:
    assert kind.exit_code == code
    assert issubclass(kind, VitralError)


@pytest.mark.parametrize("kind", [ConfigError, DataError, WeightsError])
def test_a_bad_value_can_be_caught_as_a_value_error(kind: type[VitralError]) -> None:
    with pytest.raises(ValueError, match="not this one"):
        raise kind("not this one", code="data.empty")


def test_an_error_survives_the_way_from_one_process_to_another() -> None:
    wide = ConfigError("too wide", code="config.out_of_range", where="width", hint="use 64")
    parts = [wide, ConfigError("too deep", code="config.conflict", where="depth")]
    error = pickle.loads(pickle.dumps(ConfigError.join(parts)))
    assert error.code == "config.several"
    assert [(part.message, part.code, part.where, part.hint) for part in error.problems] == [
        ("too wide", "config.out_of_range", "width", "use 64"),
        ("too deep", "config.conflict", "depth", ""),
    ]


def test_a_single_problem_is_its_own_error() -> None:
    problem = ConfigError("too wide", code="config.conflict", where="width")
    assert ConfigError.join([problem]) is problem
    assert problem.problems == (problem,)


def test_several_problems_are_listed_one_to_a_line() -> None:
    wide = ConfigError("too wide", code="config.out_of_range", where="width")
    error = ConfigError.join([wide, ConfigError("too deep", code="config.out_of_range", where="depth")])
    assert error.code == "config.several"
    assert str(error) == "2 settings are wrong:\n  width: too wide\n  depth: too deep"


def test_an_error_seen_from_outside_names_the_whole_path() -> None:
    many = ConfigError("too many", code="config.out_of_range", where="heads", hint="use 6")
    pair = ConfigError.join([many, ConfigError("too wide", code="config.conflict")])
    assert [(problem.code, str(problem)) for problem in pair.within("block.mixer").problems] == [
        ("config.out_of_range", "block.mixer.heads: too many; use 6"),
        ("config.conflict", "block.mixer: too wide"),
    ]
    assert [str(problem) for problem in pair.within("").problems] == [str(problem) for problem in pair.problems]


def test_choices_are_said_as_a_reader_would() -> None:
    assert format_choices(["a"]) == "a"
    assert format_choices(["a", "b"]) == "a or b"
    assert format_choices(["a", 2, "c"]) == "a, 2 or c"


def test_a_word_that_is_near_is_suggested_and_else_all_are_listed() -> None:
    assert did_you_mean("pach", ["depth", "patch"]) == "did you mean 'patch'?"
    assert did_you_mean("color", ["depth", "patch"]) == ""
    assert suggest_choice("pach", ["depth", "patch"]) == "did you mean 'patch'?"
    assert suggest_choice("color", ["depth", "patch"]) == "choose from depth or patch"
