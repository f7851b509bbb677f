"""Inference graphs as ONNX models.  B images, H x W pixels, C channels, K outputs.

Why not `torch.onnx.export(dynamo=True)`: it needs 6.6 s of processor time to make the model of Ti/16, this module
0.15 s, and every `predict` with ONNX Runtime or OpenVINO waits for it. OpenVINO's converter from `torch.export` needs
4.1 s. The models run about equally fast: 1.04 times our time under ONNX Runtime, 1.00 under OpenVINO, one image on
one thread. Measured with torch 2.13 by `python -m benchmarks.onnx_export`.

The graph runs once on a small batch under a `TorchFunctionMode`; expensive functions only allocate their output. What
does not depend on the pixels is computed on the way and becomes a constant. The batch is the first dimension of every
tensor and no node contains it, so the model takes any batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from vitral import __version__
from vitral.core.errors import ConfigError
from vitral.inference.engines.engine import INPUT_NAME, Precision
from vitral.inference.graph.graph import Graph
from vitral.inference.graph.layers import Block, FullAttention, fold_norm
from vitral.inference.graph.onnx_ops import OPERATORS, OnnxBuilder
from vitral.models.mlp import FeedForward, GatedFeedForward

OPSET = 20  # the first with Gelu
IR_VERSION = 9  # the first that supports it
TRACE_BATCH = 2  # distinguishes what is repeated for the batch from what is not


def lower_for_onnx(graph: Graph, precision: Precision) -> Graph:
    """A copy in the operations that ONNX engines run fastest; weights that nothing is folded into are shared.

    For int8 the norms keep their weights: folded into the next layer they would widen the range of each row, and the
    quantization error would grow (by a sixth on a DINOv2) without a gain in speed.
    """
    lowered = graph.copy_sharing_weights()
    for block in [part for part in lowered.modules() if isinstance(part, Block)]:
        if isinstance(block.mixer, FullAttention):
            block.mixer.qkv = block.mixer.qkv.separate()
        if block.pre_norm and precision == "float32":
            fold_norms(block)
    return lowered.requires_grad_(False)


def fold_norms(block: Block) -> None:
    """Fold the weights of norms into the linear layers after them, where only such layers read the norm."""
    if isinstance(block.mixer, FullAttention) and isinstance(block.mixer_norm, nn.LayerNorm):
        block.mixer_norm = _fold_into(block.mixer.qkv, block.mixer_norm, "q", "k", "v")
    if isinstance(block.mlp, FeedForward | GatedFeedForward) and isinstance(block.mlp_norm, nn.LayerNorm):
        block.mlp_norm = _fold_into(block.mlp, block.mlp_norm, "expand")


def _fold_into(parent: nn.Module, norm: nn.LayerNorm, *names: str) -> nn.LayerNorm:
    """Fold a norm into layers of a module; returns the norm without weight and bias."""
    for name in names:
        setattr(parent, name, fold_norm(norm, getattr(parent, name)).to_linear())
    return nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The graph as an ONNX model: `pixels` uint8 (B, H, W, C) to `logits` or `features` float32 (B, K), for any B."""
    builder = trace(graph)
    nodes = helper.make_graph(
        builder.nodes,
        "vitral",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["batch", *graph.image_size, graph.channels])],
        [helper.make_tensor_value_info(graph.answer, TensorProto.FLOAT, ["batch", graph.outputs])],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        nodes, opset_imports=[opset], ir_version=IR_VERSION, producer_name="vitral", producer_version=__version__
    )
    for name, value in builder.constants.items():  # added last: make_graph and make_model would each copy them
        model.graph.initializer.add().CopyFrom(numpy_helper.from_array(value.contiguous().numpy(), name))
    return model


def serialize(model: onnx.ModelProto, where: str, hint: str) -> bytes:
    """The bytes of the model file, which protobuf limits to 2 GB."""
    try:
        return model.SerializeToString()
    except Exception as error:  # protobuf raises several types
        message = f"an ONNX model is limited to 2 GB: {error}"
        raise ConfigError(message, code="config.model_too_large", where=where, hint=hint) from None


def trace(graph: Graph) -> OnnxBuilder:
    """The nodes and constants of a graph; ConfigError names the module that has no ONNX translation."""
    copy = graph.copy_sharing_weights()  # for the hooks
    pixels = torch.zeros(TRACE_BATCH, *graph.image_size, graph.channels, dtype=torch.uint8)
    with track_module_names(copy) as module_name, torch.no_grad():
        builder = OnnxBuilder(module_name)
        builder.bind(pixels, INPUT_NAME)
        with OnnxTracer(builder):
            output = copy(pixels)
    builder.finish(output, graph.answer)
    return builder


class OnnxTracer(TorchFunctionMode):
    """Inside the `with`, adds nodes for each function of a bound tensor."""

    def __init__(self, builder: OnnxBuilder) -> None:
        super().__init__()
        self.builder = builder

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        depends = any(map(self.builder.is_bound, flatten((*args, *keywords.values()))))
        run: Callable[..., Any] = SHAPE_ONLY.get(func, func) if depends else func
        result = run(*args, **keywords)
        tensors = [each for each in flatten(result) if isinstance(each, Tensor)]
        if not depends or not tensors or 0 in tensors[0].shape[1:]:
            return result  # a constant, a shape or dtype, or an empty tensor
        if func not in OPERATORS:
            message = f"{self.builder.module_name()} uses {resolve_name(func) or func}, which has no ONNX translation"
            raise ConfigError(message, code="config.unsupported", where="model", hint="use engine=eager, or --to torch")
        names = OPERATORS[func](self.builder, result, *args, **keywords)
        for tensor, name in zip(tensors, [names] if isinstance(names, str) else names, strict=True):
            self.builder.bind(tensor, name)
        return result


# Expensive functions whose values are not needed: these allocate a tensor of the right shape.
SHAPE_ONLY: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.gelu: lambda x, *_, **__: torch.empty_like(x),
    F.layer_norm: lambda x, *_, **__: torch.empty_like(x),
    F.rms_norm: lambda x, *_, **__: torch.empty_like(x),
    F.linear: lambda x, weight, *_: x.new_empty(*x.shape[:-1], len(weight)),
    F.scaled_dot_product_attention: lambda q, k, v, **_: q.new_empty(*q.shape[:-1], v.shape[-1]),
}


def flatten(values: object) -> Iterator[object]:
    """The leaves of nested lists and tuples."""
    if not isinstance(values, tuple | list):
        yield values
        return
    for value in values:
        yield from flatten(value)


@contextmanager
def track_module_names(module: nn.Module) -> Iterator[Callable[[], str]]:
    """A function that returns, inside the `with`, the name of the innermost module that is running."""
    running = [""]

    def enter(name: str) -> Callable[..., None]:
        return lambda part, inputs: running.append(name)

    def leave(*_: object) -> None:
        running.pop()

    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.enter_context(part.register_forward_pre_hook(enter(name)))
            hooks.enter_context(part.register_forward_hook(leave))
        yield lambda: running[-1]
