"""A model that trains in a moment: 2 layers of width 16 on 4 patches of 8x8 pixels, for 2 classes."""

import vitral
from vitral.models.base import Model


def tiny_model(drop_path_rate: float = 0.0) -> Model:
    sizes = {"image_size": 16, "stem.patch": 8, "width": 16, "depth": 2, "mixer.heads": 2, "head.num_classes": 2}
    return vitral.create_model("Ti/16", settings=sizes, drop_path_rate=drop_path_rate)
