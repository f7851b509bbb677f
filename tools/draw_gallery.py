"""Draw what a trained model and one of fresh weights show of the same picture, side by side, as in docs/explain.md.

Run `python -m tools.draw_gallery RUN PICTURE FOLDER`: a JPEG for each figure that both have, the trained model at the
left. The pictures in the docs are of a model that `docs/explain.md` names, and of an image of the bundled sample.
Running it again draws the same pictures.
"""

import sys
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image

import vitral
from vitral.explanation.figures import ExplanationFigure
from vitral.weights.load import LoadedModel

SHOWN = ("relevance", "rollout", "heads", "filters", "positions", "distance", "logit_lens", "faithfulness")
QUALITY = 88


def untrained(loaded: LoadedModel) -> LoadedModel:
    """The same model before its first step; its head, which would start at zero, is drawn too."""
    torch.manual_seed(0)
    model = loaded.bundle.model.build().eval()
    with torch.no_grad():
        for weight in model.head.parameters():
            weight.normal_(std=0.05)
    return LoadedModel(model, loaded.bundle)


def picture(drawing: ExplanationFigure) -> Image.Image:
    return Image.open(BytesIO(drawing.png())).convert("RGB")


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    """Both on one white sheet."""
    sheet = Image.new("RGB", (left.width + right.width, max(left.height, right.height)), "white")
    sheet.paste(left, (0, 0))
    sheet.paste(right, (left.width, 0))
    return sheet


def main() -> None:
    run, image, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    loaded = vitral.load(run)
    trained, fresh = (vitral.explain(each, image).figures() for each in (loaded, untrained(loaded)))
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHOWN:
        if name in trained and name in fresh:
            sheet = side_by_side(picture(trained[name]), picture(fresh[name]))
            sheet.thumbnail((1600, 1600), Image.Resampling.LANCZOS)
            sheet.save(folder / f"{name}.jpg", quality=QUALITY)
            print(folder / f"{name}.jpg", *sheet.size)


if __name__ == "__main__":
    main()
