"""Names of models, and options."""

from pathlib import Path
from typing import get_type_hints

from tests.errors import raises
from tests.inference.truth import loaded
from tests.models.variants import small
from vitral.serving.config import ServeConfig
from vitral.serving.serve import ServeOptions, name_models


def test_the_options_are_the_fields_of_the_config() -> None:
    fields = {name: field.annotation for name, field in ServeConfig.model_fields.items()}
    assert get_type_hints(ServeOptions) == fields


def test_a_model_has_the_name_of_its_folder() -> None:
    assert name_models("runs/my photos") == {"my-photos": "runs/my photos"}
    assert name_models(Path("runs/photos/best")) == {"photos": Path("runs/photos/best")}
    model = loaded(small())
    assert name_models(model) == {"model": model}
    assert name_models({"a": "x", "b": model}) == {"a": "x", "b": model}


def test_a_name_fits_into_an_address() -> None:
    for name in ("", "a/b", "..", "a b"):
        with raises("config.bad_name", repr(name)):
            name_models({name: "runs/photos"})
    with raises("config.missing_value"):
        name_models({})
