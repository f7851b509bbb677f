"""A stand-in for timm on a subprocess's import path: a plain ViT in a few lines, checked against timm's answers."""

import os
from pathlib import Path

import pytest

from tests.processes import run_forked
from vitral.weights.oracles import oracle

# What `python -m vitral.weights.oracles.timm FOLDER` does, with the same import path.
ORACLE = """
import os, runpy, sys
module, folder = sys.argv[1:]
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
sys.argv = [module, folder]
runpy.run_module(f"vitral.weights.oracles.{module}", run_name="__main__")
"""

TIMM = '''
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class VisionTransformer:
    """A pre-norm ViT with a class token, computed from its state dict; norms follow the branches where asked."""

    def __init__(self, heads, names, num_classes, post, approximate="none"):
        self.heads, self.names, self.num_classes, self.post = heads, names, num_classes, post
        self.approximate = approximate

    def load_state_dict(self, tensors, strict):
        missing, unexpected = self.names - tensors.keys(), tensors.keys() - self.names
        if strict and (missing or unexpected):
            raise RuntimeError(f"Error(s) in loading state_dict: {sorted(missing | unexpected)}")
        self.w = tensors

    def load_pretrained(self, path):
        with np.load(path) as file:
            self.w = dict(from_google({name: torch.from_numpy(file[name]) for name in file}))

    def eval(self):
        return self

    def layer(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], 1e-6)

    def linear(self, name, x):
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def gelu(self, x):
        return F.gelu(x, approximate=self.approximate)

    def attention(self, name, x):
        b, n, d = x.shape
        q, k, v = self.linear(f"{name}.qkv", x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        return self.linear(f"{name}.proj", x)

    def forward_features(self, images):
        kernel = self.w["patch_embed.proj.weight"]
        x = F.conv2d(images, kernel, self.w["patch_embed.proj.bias"], stride=kernel.shape[2:]).flatten(2).mT
        x = torch.cat([self.w["cls_token"].expand(len(x), -1, -1), x], dim=1)
        if x.shape[1] != self.w["pos_embed"].shape[1]:
            raise AssertionError("Input size doesn't match model")
        x = x + self.w["pos_embed"]
        for n in range(1 + max(int(name.split(".")[1]) for name in self.w if name.startswith("blocks."))):
            branches = (
                lambda x: self.attention(f"blocks.{n}.attn", x),
                lambda x: self.linear(f"blocks.{n}.mlp.fc2", self.gelu(self.linear(f"blocks.{n}.mlp.fc1", x))),
            )
            for which, branch in enumerate(branches, start=1):
                norm = f"blocks.{n}.norm{which}"
                x = x + (self.layer(norm, branch(x)) if self.post else branch(self.layer(norm, x)))
        return self.layer("norm", x)

    def forward_head(self, tokens):
        return self.linear("head", tokens[:, 0]) if self.num_classes else tokens[:, 0]


def from_google(w):
    names = {"Transformer/encoder_norm": "norm", "head": "head"}
    for n in range(sum(name.endswith("LayerNorm_0/scale") for name in w)):
        old, new = f"Transformer/encoderblock_{n}/", f"blocks.{n}."
        names |= {old + "LayerNorm_0": new + "norm1", old + "LayerNorm_2": new + "norm2"}
        names |= {old + f"MlpBlock_3/Dense_{k}": new + f"mlp.fc{k + 1}" for k in (0, 1)}
        attention = old + "MultiHeadDotProductAttention_1/"
        kernels = [w[f"{attention}{part}/kernel"].flatten(1) for part in ("query", "key", "value")]
        yield new + "attn.qkv.weight", torch.cat(kernels, dim=1).T
        yield new + "attn.qkv.bias", torch.cat([w[f"{attention}{p}/bias"].flatten() for p in ("query", "key", "value")])
        yield new + "attn.proj.weight", w[attention + "out/kernel"].flatten(0, 1).T
        yield new + "attn.proj.bias", w[attention + "out/bias"]
    for old, new in names.items():
        if old + "/bias" in w:
            yield new + ".weight", w[old + "/scale"] if old + "/scale" in w else w[old + "/kernel"].T
            yield new + ".bias", w[old + "/bias"]
    yield "cls_token", w["cls"]
    yield "pos_embed", w["Transformer/posembed_input/pos_embedding"]
    yield "patch_embed.proj.weight", w["embedding/kernel"].permute(3, 2, 0, 1)
    yield "patch_embed.proj.bias", w["embedding/bias"]


def checkpoint_filter_fn(tensors, model):
    """As timm's: what only training uses is left out; the names stay."""
    return {name: tensor for name, tensor in tensors.items() if name != "mask_token"}


def create_model(name, pretrained=False, num_classes=1000, **arguments):
    if os.environ.get("FAKE_TIMM_REFUSES"):
        raise RuntimeError("Error(s) in loading state_dict: Missing key(s): 'blocks.0.ls1.gamma'")
    post = bool(os.environ.get("FAKE_TIMM_NORM_AFTER_BRANCH"))
    if name.startswith("local-dir:"):
        folder = Path(name.removeprefix("local-dir:"))
        config = json.loads((folder / "config.json").read_bytes())
        tensors = load_file(folder / "model.safetensors")
        heads, classes = config["model_args"].get("num_heads", 3), config["num_classes"]
        model = VisionTransformer(heads, tensors.keys(), classes, post)
        model.load_state_dict(tensors, strict=True)
        return model
    names = set(json.loads(os.environ.get("FAKE_TIMM_NAMES", "[]")))
    approximate = "tanh" if arguments.get("act_layer") == "gelu_tanh" else "none"
    heads = arguments.get("num_heads") or int(name.rpartition("_")[2])
    return VisionTransformer(heads, names, num_classes, post, approximate)
'''


def install_timm(home: Path, monkeypatch: pytest.MonkeyPatch, code: str = TIMM) -> None:
    """Put a package called timm, version 9.9, on the import path of the processes that are started from now on."""
    info = home / "timm-9.9.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 9.9\n")
    (home / "timm.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH", "")])))


def run_forked_oracle(module: str, folder: Path) -> tuple[int, bytes]:
    """As `run_process` of the oracles, in a separate process that need not import torch."""
    done = run_forked(module, str(folder), code=ORACLE, env=oracle.environment())
    return done.returncode, done.stderr.encode()


def fork_oracles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer requests to oracles by `run_forked_oracle`."""
    monkeypatch.setattr(oracle, "run_process", run_forked_oracle)
