"""The analysis of one image: every layer, and the maps that one forward and one backward pass give.

L layers, T tokens, D width, H heads, K classes, R x S patches, t tokens that are shown (prefix + cells).
"""

from typing import Literal

import torch
from torch import Tensor

from vitral.core.activation import probabilities
from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.explanation import relevance, trace
from vitral.explanation.attention_distance import attention_distance, cell_grid, pool_attention, sum_cells
from vitral.explanation.explanation import Analysis, Array, LayerView, MapKind
from vitral.explanation.similarity import cosine_similarity, pca_colors
from vitral.explanation.trace import has_attention, lens_probabilities, to_array
from vitral.models.base import Layout, Model
from vitral.models.head import NoHead
from vitral.models.hooks import AttentionRecord, eval_mode
from vitral.models.resnet import ResidualNetwork

Target = int | Literal["predicted"]  # a class, or the most probable one


def analyze(model: Model, image: Tensor, target: Target = "predicted", use_head: bool = True) -> Analysis:
    """Analyze one image (1, C, H, W); relevance is about the target. A head that was not trained is left out."""
    use_head = use_head and not isinstance(model.config.head, NoHead)
    if isinstance(model, ResidualNetwork):
        return _analyze_resnet(model, image, use_head)
    vit = trace.require_vit(model)
    layout, size = vit.layout(image), Size(*image.shape[2:])
    cells = cell_grid(layout.grid)
    if len(image) != 1:
        message = f"expected one image, got {len(image)}"
        raise ConfigError(message, code="config.wrong_count", where="image", hint="pass one image at a time")
    if target != "predicted":
        trace.check_class(model, target)
    attends = has_attention(model)
    layers: list[LayerView] = []
    records: list[tuple[AttentionRecord, ...]] = []
    maps: dict[MapKind, Array] = {}
    rollout = relevance.identity_rollout(layout.length(), image)  # (1, T, T)
    with eval_mode(model), torch.inference_mode(False), torch.set_grad_enabled(attends and use_head):
        tokens = relevance.embed_with_grad(vit, image, layout)  # (1, T, D)
        for step in trace.run_layers(vit, tokens, layout):
            with torch.no_grad():
                attention = step.attention()  # (1, H, T, T)
                shown = pool_attention(attention, layout, cells)[0]  # (H, t, t)
                distance = attention_distance(attention, layout, size)[0]  # (H,)
                chances = lens_probabilities(vit, step.after, layout)[0] if use_head else image.new_empty(0)  # (K,)
                layers.append(LayerView(step.layer, to_array(shown), to_array(distance), to_array(chances)))
                rollout = relevance.extend_rollout(rollout, attention) if attends else rollout
            records.append(step.recordings)
        readout = relevance.read_out(vit, step.after, layout)
        if attends:
            maps["rollout"] = to_array(relevance.rollout_to_patches(readout.shares, rollout, layout)[0])
            if use_head:
                label = int(readout.logits.argmax()) if target == "predicted" else target
                maps["relevance"] = to_array(relevance.propagate_relevance(records, readout, [label], layout)[0])
            maps["attention"] = to_array(relevance.rollout_to_patches(readout.shares, attention.mean(dim=1), layout)[0])
    patches = readout.features[0, layout.prefix() :].detach()  # (N, D)
    return _analysis(layout, patches, layers[-1].probabilities, tuple(layers), maps)


@torch.no_grad()
def _analyze_resnet(model: ResidualNetwork, image: Tensor, use_head: bool) -> Analysis:
    """A ResNet has neither layers of tokens nor attention: only its prediction and its last feature map are shown."""
    with eval_mode(model):
        features = model.forward_features(image)
        pooled = features.patches.mean(dim=1)  # (1, D)
        chances = probabilities(model.head(pooled)[0], model.activation) if use_head else image.new_empty(0)  # (K,)
    return _analysis(Layout(0, 0, features.grid), features.patches[0], to_array(chances), (), {})


def _analysis(
    layout: Layout, patches: Tensor, chances: Array, layers: tuple[LayerView, ...], maps: dict[MapKind, Array]
) -> Analysis:
    """Add what the last patch tokens (N, D) show."""
    cells, only_patches = cell_grid(layout.grid), Layout(0, 0, layout.grid)
    sizes = sum_cells(patches.new_ones(len(patches)), only_patches, cells)  # (cells,)
    means = (sum_cells(patches.mT, only_patches, cells) / sizes).mT  # (cells, D)
    colors = pca_colors(patches, layout.grid)
    return Analysis(layout, cells, chances, layers, maps, colors, cosine_similarity(means))
