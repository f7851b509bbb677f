from vitral.recipes.augreg import plain_imagenet


def test_the_better_plain_vit_is_as_published() -> None:
    found = plain_imagenet().model_dump()
    assert (found["batch_size"], found["length"]["epochs"], found["optimizer"]["lr"]) == (1024, 90, 1e-3)
    assert (found["model"]["width"], found["model"]["position"]["kind"]) == (384, "sincos2d")
    assert (found["model"]["pool"]["kind"], found["model"]["tokens"]["cls"]) == ("mean", False)
    assert [(step["layers"], step["magnitude"]) for step in found["images"]["augment"]] == [(2, 10)]
    assert found["task"]["mixing"] == {"kind": "mixup", "alpha": 0.2}
    crop = {"kind": "center", "fraction": 0.875, "filter": "bilinear", "aspect": "keep", "rounding": "even"}
    assert found["images"]["eval_crop"] == crop
