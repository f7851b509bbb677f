"""In how many bits to compute: what was asked for, where the hardware really has it.

Weights and the optimizer stay in float32. In mixed precision the matrix products run in 16 bits, which pays only on
hardware made for it: a CPU without bfloat16 instructions takes six times as long for it as for float32.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch.amp import GradScaler, autocast

from vitral.core.config import Config

# Instructions that multiply in 16 bits, as torch names them.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # the last two of ARM
FLOAT16 = ("avx512_fp16", "amx_fp16")


class Hardware(NamedTuple):
    """What a device is made for, and why it is not used for anything else."""

    bfloat16: bool
    float16: bool
    best: torch.dtype
    otherwise: str


class Decision(NamedTuple):
    """The type to compute in, and what to tell the user; empty when it is what was asked for."""

    dtype: torch.dtype
    words: str = ""


class PrecisionKind(Config):
    """What a kind decides on the hardware at hand."""

    def decide(self, hardware: Hardware) -> Decision:
        raise NotImplementedError


class Auto(PrecisionKind):
    """What the hardware does best: mixed on a GPU that has it, else float32."""

    kind: Literal["auto"] = "auto"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(hardware.best)


class Float32(PrecisionKind):
    """All of it in 32 bits."""

    kind: Literal["float32"] = "float32"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(torch.float32)


class Bfloat16(PrecisionKind):
    """Mixed, with the range of float32 and 8 bits of precision."""

    kind: Literal["bfloat16"] = "bfloat16"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(torch.bfloat16) if hardware.bfloat16 else fall_back("bfloat16", hardware)


class Float16(PrecisionKind):
    """Mixed, with 11 bits of precision and a small range, for which the loss is scaled: for GPUs without bfloat16."""

    kind: Literal["float16"] = "float16"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(torch.float16) if hardware.float16 else fall_back("float16", hardware)


PrecisionConfig = Annotated[Auto | Float32 | Bfloat16 | Float16, Field(discriminator="kind")]


def fall_back(asked: str, hardware: Hardware) -> Decision:
    return Decision(torch.float32, f"{asked} is not used, {hardware.otherwise}: training in float32")


def probe(device: torch.device) -> Hardware:
    """What this device is made for."""
    match device.type:
        case "cuda":
            return gpu(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        case "cpu":
            return cpu(torch.cpu.get_capabilities())
        case other:
            return Hardware(False, False, torch.float32, f"since nobody has tried it on {other} devices")


def gpu(name: str, capability: tuple[int, int]) -> Hardware:
    """Tensor cores take float16 from capability 7.0 on, bfloat16 from 8.0 on."""
    bfloat16, float16 = capability >= (8, 0), capability >= (7, 0)
    best = torch.bfloat16 if bfloat16 else torch.float16 if float16 else torch.float32
    return Hardware(
        bfloat16, float16, best, f"since {name} (capability {capability[0]}.{capability[1]}) has no cores for it"
    )


def cpu(capabilities: Mapping[str, Any]) -> Hardware:
    """16 bits on a CPU only when asked for: even with the instructions, what they gain depends on the model."""
    name = capabilities.get("cpu_name", capabilities["architecture"])
    bfloat16 = any(capabilities.get(instruction, False) for instruction in BFLOAT16)
    float16 = any(capabilities.get(instruction, False) for instruction in FLOAT16)
    return Hardware(bfloat16, float16, torch.float32, f"since this processor ({name}) would be slower in it")


class Precision:
    """How a step computes: the forward pass inside `autocast()`, the backward pass and the step by way of `scaler`.

    Only float16 needs the scaler; for the others it passes everything through, so a loop is the same for all:
    `scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)` before clipping, `scaler.step(optimizer)`,
    `scaler.update()`. A scaler leaves out the step whose gradients overflow, and scales less from then on.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.scaler = GradScaler(device.type, enabled=dtype == torch.float16)

    def autocast(self) -> autocast:
        return autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def state(self) -> dict[str, float]:
        """What the scaler has learned; plain numbers, none unless it is used."""
        return self.scaler.state_dict()

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state. A run that was saved in another precision has none, and the scaler starts anew."""
        if state:
            self.scaler.load_state_dict(dict(state))
