"""The routes over real HTTP."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, exif, smooth
from tests.serving.client import JPEG, ask, form, photo
from vitral.explanation.explain import EncodedImage, Explainer
from vitral.inference.predictor import Predictor
from vitral.serving.server import Server
from vitral.weights.load import LoadedModel


def model_of(server: Server, name: str) -> LoadedModel:
    source = server.service.sources[name]
    assert isinstance(source, LoadedModel)
    return source


def test_one_image_is_classified_as_in_python(server: Server) -> None:
    answer = ask(server.url, "/v1/predict?top=3", photo())
    truth = Predictor(model_of(server, "vit"), engine="eager")(photo(), top=3)
    assert answer.status == 200
    assert answer.json == {
        "model": "vit",
        "engine": "eager",
        "predictions": [{"name": "image", "labels": list(truth.labels), "scores": list(truth.scores)}],
        "request_id": answer.headers["x-request-id"],
    }


def test_images_of_a_form_are_answered_in_order_by_the_model_that_was_named(server: Server) -> None:
    files = {f"{seed}.jpg": photo(seed) for seed in range(3)}
    body, headers = form(*(("image", name, data) for name, data in files.items()))
    answer = ask(server.url, "/v1/predict?model=other", body, headers).json
    truth = Predictor(model_of(server, "other"), engine="eager")(list(files.values()))
    assert answer["model"] == "other"
    assert [each["name"] for each in answer["predictions"]] == list(files)
    assert [each["labels"] for each in answer["predictions"]] == [list(each.labels) for each in truth]
    scores = np.array([each["scores"] for each in answer["predictions"]])
    np.testing.assert_allclose(scores, [each.scores for each in truth], atol=1e-6)


def test_features_are_those_of_the_predictor(server: Server) -> None:
    answer = ask(server.url, "/v1/features?model=headless", photo()).json
    predictor = Predictor(model_of(server, "headless"), engine="eager")
    pixels = predictor.bundle.preprocessing.pixels(photo(), "image")
    assert answer["width"] == predictor.width
    np.testing.assert_allclose(answer["features"][0]["features"], predictor.features(pixels[None])[0], atol=1e-5)


def test_maps_are_those_of_an_explanation(server: Server) -> None:
    answer = ask(server.url, "/v1/explain", photo()).json
    truth = Explainer(model_of(server, "vit"), quick=True).explain(EncodedImage("image", photo()))
    assert answer["grid"] == list(truth.layout.grid)
    assert answer["label"] == truth.target
    shape = [len(truth.layers), len(truth.layers[0].attention), truth.layout.grid.cells()]
    assert answer["attention"]["shape"] == shape
    assert [answer["layers"], answer["heads"]] == shape[:2]
    attention = np.reshape(answer["attention"]["data"], shape)
    prefix = truth.layout.prefix()
    np.testing.assert_allclose(attention, [each.attention[:, 0, prefix:] for each in truth.layers], atol=1e-6)
    for kind in ("rollout", "relevance"):
        shown = np.array(answer[kind]) - min(answer[kind])  # an explanation starts its maps at zero
        np.testing.assert_allclose(shown, truth.maps[kind].ravel(), atol=1e-5)


def test_a_patch_can_be_asked_for_what_it_attends_to(server: Server) -> None:
    answer = ask(server.url, "/v1/explain?maps=attention&query=5", photo()).json
    truth = Explainer(model_of(server, "vit"), quick=True).explain(EncodedImage("image", photo()))
    prefix = truth.layout.prefix()
    expected = [each.attention[:, prefix + 5, prefix:] for each in truth.layers]
    np.testing.assert_allclose(
        np.reshape(answer["attention"]["data"], answer["attention"]["shape"]), expected, atol=1e-6
    )
    assert answer["query"] == "5"
    assert "rollout" not in answer
    assert "relevance" not in answer


def test_relevance_is_about_the_class_that_was_named(server: Server) -> None:
    one, two = (ask(server.url, f"/v1/explain?maps=relevance&label={label}", photo()).json for label in "ab")
    assert (one["label"], two["label"]) == ("a", "b")
    assert one["relevance"] != two["relevance"]


def test_the_box_is_the_crop_of_the_upright_photo(server: Server) -> None:
    turned = encoded(smooth(60, 20), "JPEG", exif=exif(6))
    assert ask(server.url, "/v1/explain?maps=rollout", turned).json["box"] == [0, 0, 1, 1]  # the whole is resized


def test_a_map_is_drawn_over_the_photo(server: Server) -> None:
    for query in ("maps=rollout", "maps=relevance&label=b", "maps=attention&layer=1&head=2", "maps=attention&query=3"):
        answer = ask(server.url, f"/v1/explain?format=png&{query}", photo())
        assert answer.headers["content-type"] == "image/png"
        picture = np.asarray(Image.open(BytesIO(answer.body)))
        assert picture.shape[0] * 48 == picture.shape[1] * 40  # as the photo
        assert (picture.max(axis=2) - picture.min(axis=2)).max() > 80  # in color, over gray


@pytest.mark.parametrize(
    ("path", "status", "code", "field"),
    [
        ("/v1/predict?model=vitt", 404, "serve.unknown_model", "model"),
        ("/v1/predict?top=0", 422, "config.wrong_type", "top"),
        ("/v1/predict?top=many", 422, "config.wrong_type", "top"),
        ("/v1/predict?model=headless", 422, "config.unsupported", "model"),
        ("/v1/explain?model=resnet", 422, "config.no_attention", "model"),
        ("/v1/explain?model=headless", 422, "config.unsupported", "maps"),
        ("/v1/explain?maps=rollouts", 422, "config.unknown_name", "maps"),
        ("/v1/explain?query=24", 422, "config.out_of_range", "query"),
        ("/v1/explain?query=-1", 422, "config.out_of_range", "query"),
        ("/v1/explain?label=zebra", 422, "config.unknown_name", "label"),
        ("/v1/explain?label=" + "9" * 5000, 422, "config.wrong_type", "label"),
        ("/v1/explain?layer=3&format=png&maps=attention", 422, "config.out_of_range", "layer"),
        ("/v1/explain?head=3&format=png&maps=attention", 422, "config.out_of_range", "head"),
        ("/v1/explain?format=png", 422, "config.conflict", "maps"),
        ("/v1/explain?format=gif", 422, "config.wrong_type", "format"),
    ],
)
def test_a_wrong_parameter_is_named(server: Server, path: str, status: int, code: str, field: str) -> None:
    answer = ask(server.url, path, photo())
    assert (answer.status, answer.code, answer.json["field"]) == (status, code, field)
    assert answer.json["detail"]


def test_a_file_that_is_no_image_is_named(server: Server) -> None:
    body, headers = form(("image", "good.jpg", photo()), ("image", "bad.jpg", b"hello"))
    answer = ask(server.url, "/v1/predict", body, headers)
    assert (answer.status, answer.code, answer.json["field"]) == (422, "data.unknown_format", "image")
    assert "bad.jpg" in answer.json["detail"]
    assert server.service.admission.images == 0
    assert ask(server.url, "/v1/explain", body, headers).code == "serve.too_many_images"


def test_models_are_listed_and_described(server: Server) -> None:
    found = ask(server.url, "/v1/models").json["models"]
    assert [each["name"] for each in found] == ["vit", "other", "resnet", "headless"]
    assert found[0] == {
        "name": "vit", "classes": 4, "image_size": [32, 48], "engine": "eager", "explain": True, "layers": 2,
        "heads": 2, "parameters": sum(each.numel() for each in model_of(server, "vit").model.parameters()),
    }  # fmt: skip
    assert [each["explain"] for each in found] == [True, True, False, True]
    details = ask(server.url, "/v1/models/vit").json
    assert details["class_names"] == list("abcd")
    assert details["preprocessing"]["image_size"] == [32, 48]
    assert ask(server.url, "/v1/models/vitt").code == "serve.unknown_model"


def test_other_routes_and_methods_are_problems(server: Server) -> None:
    assert ask(server.url, "/v1/nothing").code == "serve.not_found"
    assert ask(server.url, "/v1/predict").code == "serve.wrong_method"
    assert ask(server.url, "/v1/models", b"", JPEG).code == "serve.wrong_method"
    assert ask(server.url, "/v1/predict", b"", JPEG, method="DELETE").headers["allow"] == "POST"
