import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveInt, ValidationError, model_validator

from vitral.config import Config, Size, members, override
from vitral.errors import ConfigError


class Learned(Config):
    kind: Literal["learned1d"] = "learned1d"


class SinCos(Config):
    kind: Literal["sincos2d"] = "sincos2d"
    temperature: float = 10000.0


class Scale(Config):
    factor: float = 1.0


class Rope(Config):
    kind: Literal["rope2d"] = "rope2d"
    base: float = 100.0
    turns: int = 1
    scale: Scale = Scale()


Position = Annotated[Learned | SinCos | Rope, Field(discriminator="kind")]


class Mixer(Config):
    heads: PositiveInt = 2
    bias: bool = True


class Model(Config):
    width: int = 8
    image: Size = Size(224, 224)
    name: str = "model"
    layers: tuple[int, ...] = (3, 4)
    folder: Path = Path("runs")
    mixer: Mixer = Mixer()
    position: Position = Learned()
    more: tuple[Position, ...] = ()

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.mixer.heads:
            what = f"{self.mixer.heads} heads do not divide a width of {self.width}"
            raise ConfigError(what, where="mixer.heads", remedy="choose a divisor of the width")
        return self


class Run(Config):
    model: Model = Model()
    steps: int
    rate: float | Literal["auto"] = "auto"


def message(data: dict[str, Any], config: type[Config] = Model) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse(data)
    return str(caught.value)


UNEVEN = "mixer.heads: 2 heads do not divide a width of 7; choose a divisor of the width"


def test_a_config_cannot_be_changed_and_equal_ones_are_one_key() -> None:
    config = Model()
    with pytest.raises(ValidationError, match="frozen"):
        config.width = 16
    assert {config: 1}[Model()] == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"width": "8"}, "width: expected a whole number, got '8'"),
        ({"width": 8.0}, "width: expected a whole number, got 8.0"),
        ({"width": True}, "width: expected a whole number, got True"),
        ({"name": 3}, "name: expected text, got 3"),
        ({"mixer": {"bias": 1}}, "mixer.bias: expected true or false, got 1"),
        ({"mixer": {"heads": 0}}, "mixer.heads: expected more than 0, got 0"),
        ({"mixer": 3}, "mixer: expected fields by name, got 3"),
        ({"layers": 3}, "layers: expected a list, got 3"),
        ({"layers": [3, "4"]}, "layers.1: expected a whole number, got '4'"),
        ({"image": 0}, "image: expected a size such as 224 or 224x320, got 0"),
        ({"position": "rope2d"}, "position: expected fields by name, got 'rope2d'"),
        ({"position": {"kind": "alibi"}}, "position: expected learned1d, sincos2d or rope2d, got 'alibi'"),
        ({"position": {"base": 3.0}}, "position: expected learned1d, sincos2d or rope2d, got no kind"),
        ({"position": {"kind": "rope2d", "base": float("nan")}}, "position.base: expected a finite number, got nan"),
        ({"position": {"kind": "rope2d", "turns": "1"}}, "position.turns: expected a whole number, got '1'"),
        ({"more": [{"kind": "learned1d"}, {"kind": "rope2d", "turns": "1"}]},
         "more.1.turns: expected a whole number, got '1'"),
        ({"widht": 8}, "widht: unknown field; did you mean 'width'?"),
        ({"colour": 8}, "colour: unknown field; "
                        "choose from width, image, name, layers, folder, mixer, position or more"),
        ({"position": {"kind": "rope2d", "bse": 3.0}},
         "position.bse: unknown field of rope2d (its fields: base, turns, scale); did you mean 'base'?"),
        ({"position": {"kind": "rope2d", "scale": {"fctor": 1.0}}},
         "position.scale.fctor: unknown field; did you mean 'factor'?"),
        ({"position": {"kind": "learned1d", "base": 3.0}},
         "position.base: unknown field of learned1d (its fields: none); base is a field of rope2d"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_was_expected_and_found(data: dict[str, Any], expected: str) -> None:
    assert message(data) == expected


def test_a_value_that_must_be_given_is_asked_for() -> None:
    assert message({}, Run) == "steps: a value is required, none was given"


def test_every_problem_is_listed() -> None:
    lines = message({"model": {"width": "8", "widht": 3}}, Run).splitlines()
    assert lines == [
        "3 settings are wrong:",
        "  model.width: expected a whole number, got '8'",
        "  model.widht: unknown field; did you mean 'width'?",
        "  steps: a value is required, none was given",
    ]


def test_a_field_of_two_plain_types_is_one_problem_that_names_both() -> None:
    assert message({"steps": 1, "rate": "fast"}, Run) == "rate: expected a number or auto, got 'fast'"
    assert message({"steps": "1", "rate": "fast"}, Run).startswith("2 settings are wrong:\n  steps: ")


def test_a_long_value_is_cut_short() -> None:
    assert len(message({"width": "7" * 500})) < 120


def test_building_a_config_in_python_raises_a_config_error_too() -> None:
    with pytest.raises(ConfigError, match="did you mean 'width'") as caught:
        Model(widht=8)  # type: ignore[call-arg]
    assert caught.value.where == "widht"


@pytest.mark.parametrize(
    ("build", "where"),
    [
        (lambda: Model(width=7), "mixer.heads"),
        (lambda: Run(model=Model(width=7), steps=1), "mixer.heads"),
        (lambda: Run(model={"width": 7}, steps=1), "model.mixer.heads"),  # type: ignore[arg-type]
        (lambda: Run.parse({"model": {"width": 7}, "steps": 1}), "model.mixer.heads"),
        (lambda: Run.from_json('{"model": {"width": 7}, "steps": 1}'), "model.mixer.heads"),
    ],
)
def test_a_check_across_fields_keeps_its_parts_and_gains_the_path(build: Any, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    error = caught.value
    assert error.what == "2 heads do not divide a width of 7"
    assert (error.where, error.remedy) == (where, "choose a divisor of the width")


def test_plain_data_may_use_lists_for_tuples_and_text_for_paths() -> None:
    config = Model.parse({"layers": [1, 2, 3], "folder": "photos", "image": [32, 48]})
    assert (config.layers, config.folder, config.image) == ((1, 2, 3), Path("photos"), Size(32, 48))


positions = st.one_of(
    st.builds(Learned),
    st.builds(SinCos, temperature=st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(Rope, base=st.floats(allow_nan=False, allow_infinity=False), turns=st.integers()),
)


@given(
    st.builds(
        Model,
        width=st.integers().map(lambda n: 2 * n),
        image=st.builds(Size, st.integers(1), st.integers(1)),
        name=st.text(),
        layers=st.lists(st.integers()).map(tuple),
        position=positions,
        more=st.lists(positions).map(tuple),
    )
)
def test_any_config_is_the_same_after_json(config: Model) -> None:
    assert Model.from_json(config.to_json()) == config


def test_json_is_indented_and_in_the_order_of_the_class() -> None:
    text = Model().to_json()
    assert text.startswith('{\n  "width": 8,\n')
    assert list(json.loads(text)) == list(Model.model_fields)
    assert json.loads(text)["image"] == [224, 224]


def test_broken_json_says_where_it_breaks() -> None:
    with pytest.raises(ConfigError, match=r"not valid JSON.*line 1 column 9"):
        Model.from_json('{"width":')


@pytest.mark.parametrize("value", [224, "224", "224x224", [224, 224], (224, 224), [224], Size(224, 224)])
def test_a_size_is_read_from_every_way_to_write_it(value: Any) -> None:
    assert Model(image=value).image == Size(224, 224)
    assert Model.parse({"image": value}).image == Size(224, 224)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, None, "", "x", "224x", "1x2x3", "-1", "0x4", [1, 2, 3], [1.0, 2]])
def test_what_is_no_size_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="image: expected a size such as 224 or 224x320"):
        Model(image=value)


def test_a_size_is_height_by_width() -> None:
    assert str(Size.parse("224x320")) == "224x320"
    assert Size.parse("224x320") == Size(height=224, width=320)


def test_the_members_of_a_union_are_its_classes_in_order() -> None:
    assert members(Position) == (Learned, SinCos, Rope)
    assert members(Learned | Rope) == (Learned, Rope)
    assert members(Learned) == (Learned,)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], Model()),
        (["width=16", "name=16x16", "mixer.bias=false"], Model(width=16, name="16x16", mixer=Mixer(bias=False))),
        (["image=224x320"], Model(image=Size(224, 320))),
        (["layers=[1, 2]"], Model(layers=(1, 2))),
        (['name="7"'], Model(name="7")),
        (["name=a=b"], Model(name="a=b")),
        (["width=9", "mixer.heads=3"], Model(width=9, mixer=Mixer(heads=3))),
        (['mixer={"heads": 4}'], Model(mixer=Mixer(heads=4))),
        (["position=rope2d"], Model(position=Rope())),
        (["position.kind=rope2d"], Model(position=Rope())),
        (["position=sincos2d", "position.kind=rope2d"], Model(position=Rope())),
        (['position={"kind": "rope2d", "base": 5}'], Model(position=Rope(base=5.0))),
        (["position=rope2d", "position.base=5"], Model(position=Rope(base=5.0))),
        (["position=rope2d", "position.scale.factor=2"], Model(position=Rope(scale=Scale(factor=2.0)))),
        (['position={"kind": "rope2d"}', "position.scale.factor=2"], Model(position=Rope(scale=Scale(factor=2.0)))),
        (["position=rope2d", "position.base=5", "position=rope2d"], Model(position=Rope(base=5.0))),
        (["position=rope2d", "position.base=5", "position=sincos2d"], Model(position=SinCos())),
    ],
)  # fmt: skip
def test_settings_are_applied_in_turn_and_checked_together(settings: list[str], expected: Model) -> None:
    before = Model()
    assert override(before, settings) == expected
    assert before == Model()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("width", "expected field=value, got 'width'"),
        ("=8", "expected field=value, got '=8'"),
        ("width=7", UNEVEN),
        ("width=wide", "width: expected a whole number, got 'wide'"),
        ("width.x=3", "width.x: width is 8, which has no fields; set it as width=VALUE"),
        ("layers.0=3", "layers.0: layers is [3, 4], which has no fields; set it as layers=VALUE"),
        ("widht=3", "widht: unknown field; did you mean 'width'?"),
        ("mixr.heads=3", "mixr: unknown field; did you mean 'mixer'?"),
        ("mixer.head=3", "mixer.head: unknown field; did you mean 'heads'?"),
        ("mixer.kind=fast", "mixer.kind: unknown field; choose from heads or bias"),
        ("position=alibi", "position: expected learned1d, sincos2d or rope2d, got 'alibi'"),
        ("position=rope", "position: expected learned1d, sincos2d or rope2d, got 'rope'; did you mean 'rope2d'?"),
        ("position=[1]", "position: expected learned1d, sincos2d or rope2d, got [1]"),
        ('position={"base":3}', "position: expected learned1d, sincos2d or rope2d, got no kind"),
        ("position=rope2d position.bse=3",
         "position.bse: unknown field of rope2d (its fields: base, turns, scale); did you mean 'base'?"),
        ("position.base=3",
         "position.base: unknown field of learned1d (its fields: none); base is a field of rope2d"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_applied_says_why(settings: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Model(), settings.split())
    assert str(caught.value) == expected


def test_fields_given_by_name_are_completed_before_the_next_setting() -> None:
    run = override(Run(steps=1), ['model={"width": 12}', "model.mixer.heads=4"])
    assert run.model == Model(width=12, mixer=Mixer(heads=4))


def test_a_kind_without_all_its_defaults_asks_for_the_rest() -> None:
    class Needy(Config):
        kind: Literal["needy"] = "needy"
        size: int

    class Holder(Config):
        part: Annotated[Learned | Needy, Field(discriminator="kind")] = Learned()

    assert override(Holder(), ["part=needy", "part.size=3"]).part == Needy(size=3)
    with pytest.raises(ConfigError, match=r"^part\.size: a value is required"):
        override(Holder(), ["part=needy"])
