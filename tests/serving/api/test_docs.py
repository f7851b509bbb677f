"""The description of the API has examples that can be sent as they are."""

import json
from typing import Any

from tests.serving.client import ask
from vitral.serving.api.schema import REFUSALS, Problem
from vitral.serving.http.problems import STATUSES
from vitral.serving.server import Server


def described(server: Server) -> dict[str, Any]:
    return dict(ask(server.url, "/openapi.json").json)


def test_the_examples_of_the_description_can_be_sent_as_they_are(server: Server) -> None:
    infer = described(server)["paths"]["/v2/models/{name}/infer"]["post"]
    example = infer["requestBody"]["content"]["application/json"]["example"]
    (name,) = [each["example"] for each in infer["parameters"] if each["name"] == "name"]
    answer = ask(server.url, f"/v2/models/{name}/infer", json.dumps(example).encode(), {"Content-Type": "text/json"})
    assert answer.status == 200
    assert [each["name"] for each in answer.json["outputs"]] == ["logits", "probabilities", "label"]


def test_every_field_of_an_answer_has_an_example_that_version_3_0_knows(server: Server) -> None:
    found = described(server)
    assert found["openapi"] == "3.0.3"
    assert '"examples"' not in json.dumps(found)
    for model in ("ImagePrediction", "ImageFeatures", "ModelSummary", "AttentionMaps"):
        fields = found["components"]["schemas"][model]["properties"]
        assert [name for name, field in fields.items() if "example" not in field] == []


def test_the_example_of_a_problem_has_a_code_of_its_status() -> None:
    for status, refusal in REFUSALS.items():
        assert STATUSES.get(refusal.code, 422) == status
        content = refusal.response(status)["content"]["application/problem+json"]
        assert set(content["example"]) == set(Problem.model_fields)
