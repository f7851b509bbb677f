import gc
import json
import weakref
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PositiveInt, ValidationError, model_validator

from tests.errors import raises
from vitral.core.config import Config, Size, override, union_members
from vitral.core.errors import ConfigError, VitralError


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
    side: Literal["left", "right"] = "left"
    pair: tuple[int, int] = (0, 1)

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.mixer.heads:
            message = f"{self.mixer.heads} heads do not divide a width of {self.width}"
            raise ConfigError(message, code="config.indivisible", where="mixer.heads", hint="choose a divisor")
        if self.pair[0] > self.pair[1]:
            raise ValueError(f"{self.pair[0]} > {self.pair[1]}")
        return self


class Run(Config):
    model: Model = Model()
    steps: int
    rate: float | Literal["auto"] = "auto"


def found_in(error: VitralError) -> dict[str, str]:
    return {each.where: each.code for each in getattr(error, "problems", ())}


def test_a_config_cannot_be_changed_and_equal_ones_are_one_key() -> None:
    config = Model()
    with pytest.raises(ValidationError, match="frozen"):
        config.width = 16
    assert {config: 1}[Model()] == 1


@pytest.mark.parametrize(
    ("data", "code", "values"),
    [
        ({"width": "8"}, "config.wrong_type", ["width", "'8'"]),
        ({"width": 8.0}, "config.wrong_type", ["width", 8.0]),
        ({"width": True}, "config.wrong_type", ["width", True]),
        ({"name": 3}, "config.wrong_type", ["name", 3]),
        ({"mixer": {"bias": 1}}, "config.wrong_type", ["mixer.bias", "true or false", 1]),
        ({"mixer": {"heads": 0}}, "config.out_of_range", ["mixer.heads", "0, got 0"]),
        ({"mixer": 3}, "config.wrong_type", ["mixer", 3]),
        ({"layers": 3}, "config.wrong_type", ["layers", 3]),
        ({"layers": [3, "4"]}, "config.wrong_type", ["layers.1", "'4'"]),
        ({"image": 0}, "config.wrong_type", ["image", "224x320, got 0"]),
        ({"side": "up"}, "config.unknown_name", ["side", "left or right", "'up'"]),
        ({"pair": [1, 2, 3]}, "config.bad_value", ["pair", "[1, 2, 3]"]),
        ({"pair": [2, 1]}, "config.bad_value", ["", "2 > 1"]),
        ({"position": "rope2d"}, "config.wrong_type", ["position", "'rope2d'"]),
        ({"position": {"kind": "alibi"}}, "config.unknown_name", ["position", "sincos2d or rope2d", "'alibi'"]),
        ({"position": {"base": 3.0}}, "config.unknown_name", ["position", "learned1d, sincos2d or rope2d"]),
        ({"position": {"kind": "rope2d", "base": float("nan")}}, "config.out_of_range", ["position.base", "nan"]),
        ({"position": {"kind": "rope2d", "turns": "1"}}, "config.wrong_type", ["position.turns", "'1'"]),
        ({"more": [{"kind": "learned1d"}, {"kind": "rope2d", "turns": "1"}]},
         "config.wrong_type", ["more.1.turns", "'1'"]),
        ({"widht": 8}, "config.unknown_field", ["widht", "'width'"]),
        ({"color": 8}, "config.unknown_field", ["color", "width, image, name, layers", "side or pair"]),
        ({"position": {"kind": "rope2d", "bse": 3.0}}, "config.unknown_field", ["position.bse", "scale", "'base'"]),
        ({"position": {"kind": "rope2d", "scale": {"fctor": 1.0}}},
         "config.unknown_field", ["position.scale.fctor", "'factor'"]),
        ({"position": {"kind": "learned1d", "base": 3.0}}, "config.unknown_field", ["position.base", "rope2d"]),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_was_expected_and_found(data: Any, code: str, values: Any) -> None:
    with raises(code, *values) as caught:
        Model.parse(data)
    assert caught.value.where == values[0]


def test_a_value_that_must_be_given_is_asked_for() -> None:
    with raises("config.missing_value", "steps"):
        Run.parse({})


def test_every_problem_is_listed() -> None:
    with raises("config.several", 3) as caught:
        Run.parse({"model": {"width": "8", "widht": 3}})
    told = {"model.width": "config.wrong_type", "model.widht": "config.unknown_field", "steps": "config.missing_value"}
    assert found_in(caught.value) == told
    assert len(str(caught.value).splitlines()) == 4


def test_a_field_of_two_plain_types_is_one_problem_that_names_both() -> None:
    with raises("config.wrong_type", "rate", "number or auto", "'fast'"):
        Run.parse({"steps": 1, "rate": "fast"})
    with raises("config.several", 2) as caught:
        Run.parse({"steps": "1", "rate": "fast"})
    assert found_in(caught.value) == {"steps": "config.wrong_type", "rate": "config.wrong_type"}


def test_a_long_value_is_cut_short() -> None:
    with raises("config.wrong_type", "width", "777") as caught:
        Model.parse({"width": "7" * 500})
    assert len(str(caught.value)) < 120


def test_building_a_config_in_python_raises_a_config_error_too() -> None:
    with raises("config.unknown_field", "'width'") as caught:
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
    with raises("config.indivisible", "2 heads do not divide a width of 7") as caught:
        build()
    assert (caught.value.where, caught.value.hint) == (where, "choose a divisor")


@pytest.mark.parametrize("text", ['{"sides": [3, 4]}', '{"size": "wide"}'], ids=["across fields", "in a field"])
def test_a_refused_config_leaves_nothing_in_memory(text: str) -> None:
    class Square(Config):
        sides: tuple[int, int] = (1, 1)
        size: Size = Size(1, 1)

        @model_validator(mode="after")
        def check(self) -> Self:
            if self.sides[0] != self.sides[1]:
                raise ConfigError("not square", code="config.conflict")
            return self

    class Large:
        pass

    def refused() -> weakref.ref[Large]:
        held = Large()  # as weights are by the frame that reads their config
        with pytest.raises(ConfigError):
            Square.from_json(text)
        return weakref.ref(held)

    held = refused()
    gc.collect()
    assert held() is None


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
    with raises("config.bad_json", "line 1 column 9"):
        Model.from_json('{"width":')


@pytest.mark.parametrize("value", [224, "224", "224x224", [224, 224], (224, 224), [224], Size(224, 224)])
def test_a_size_is_read_from_every_way_to_write_it(value: Any) -> None:
    assert Model(image=value).image == Size(224, 224)
    assert Model.parse({"image": value}).image == Size(224, 224)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, None, "", "x", "224x", "1x2x3", "-1", "0x4", [1, 2, 3], [1.0, 2]])
def test_what_is_no_size_is_refused(value: Any) -> None:
    with raises("config.wrong_type", "image", "224x320", repr(value)):
        Model(image=value)


def test_a_size_is_height_by_width() -> None:
    assert str(Size.parse("224x320")) == "224x320"
    assert Size.parse("224x320") == Size(height=224, width=320)


def test_the_members_of_a_union_are_its_classes_in_order() -> None:
    assert union_members(Position) == (Learned, SinCos, Rope)
    assert union_members(Learned | Rope) == (Learned, Rope)
    assert union_members(Learned) == (Learned,)


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
    ("settings", "code", "values"),
    [
        ("width", "config.bad_setting", ["", "'width'"]),
        ("=8", "config.bad_setting", ["", "'=8'"]),
        ("width=7", "config.indivisible", ["mixer.heads", 2, 7]),
        ("width=wide", "config.wrong_type", ["width", "'wide'"]),
        ("width.x=3", "config.unknown_field", ["width.x", 8, "width=VALUE"]),
        ("layers.0=3", "config.unknown_field", ["layers.0", "[3, 4]", "layers=VALUE"]),
        ("widht=3", "config.unknown_field", ["widht", "'width'"]),
        ("mixr.heads=3", "config.unknown_field", ["mixr", "'mixer'"]),
        ("haeds=3", "config.unknown_field", ["haeds", "'heads'"]),
        ("mixer.head=3", "config.unknown_field", ["mixer.head", "'heads'"]),
        ("mixer.kind=fast", "config.unknown_field", ["mixer.kind", "heads or bias"]),
        ("position=alibi", "config.unknown_name", ["position", "learned1d, sincos2d or rope2d", "'alibi'"]),
        ("position=rope", "config.unknown_name", ["position", "learned1d, sincos2d or rope2d", "'rope'", "'rope2d'"]),
        ("position=[1]", "config.unknown_name", ["position", "learned1d, sincos2d or rope2d", "[1]"]),
        ('position={"base":3}', "config.unknown_name", ["position", "learned1d, sincos2d or rope2d"]),
        ("position=rope2d position.bse=3", "config.unknown_field", ["position.bse", "base, turns, scale", "'base'"]),
        ("position.base=3", "config.unknown_field", ["position.base", "learned1d", "rope2d"]),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_applied_says_why(settings: str, code: str, values: Any) -> None:
    with raises(code, *values) as caught:
        override(Model(), settings.split())
    assert caught.value.where == values[0]


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
    with raises("config.missing_value", "part.size"):
        override(Holder(), ["part=needy"])
