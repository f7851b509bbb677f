"""Precision of training: float32, or mixed precision where the hardware supports it.

Weights and optimizer state stay in float32. Mixed precision runs matrix products in 16 bits, which pays off only with
hardware support: on a CPU without bfloat16 instructions it takes six times as long as float32.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch.amp import GradScaler, autocast

from vitral.core.config import Config

# CPU instructions for 16-bit products, by the names of torch.cpu.get_capabilities().
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # the last two of ARM
FLOAT16 = ("avx512_fp16", "amx_fp16")


class Hardware(NamedTuple):
    """The 16-bit types that a device supports, the default, and why others are not used."""

    bfloat16: bool
    float16: bool
    best: torch.dtype
    reason: str


class Decision(NamedTuple):
    """The type to compute in, and a message for the user if it is not the requested one."""

    dtype: torch.dtype
    message: str = ""


class PrecisionKind(Config):
    """A requested precision."""

    def decide(self, hardware: Hardware) -> Decision:
        raise NotImplementedError


class Auto(PrecisionKind):
    """Mixed precision on a GPU that supports it, else float32."""

    kind: Literal["auto"] = "auto"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(hardware.best)


class Float32(PrecisionKind):
    """Everything in float32."""

    kind: Literal["float32"] = "float32"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(torch.float32)


class Bfloat16(PrecisionKind):
    """Mixed precision with the range of float32 and 8 bits of precision."""

    kind: Literal["bfloat16"] = "bfloat16"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(torch.bfloat16) if hardware.bfloat16 else fall_back_to_float32("bfloat16", hardware)


class Float16(PrecisionKind):
    """Mixed precision with 11 bits of precision and loss scaling: for GPUs without bfloat16."""

    kind: Literal["float16"] = "float16"

    def decide(self, hardware: Hardware) -> Decision:
        return Decision(torch.float16) if hardware.float16 else fall_back_to_float32("float16", hardware)


PrecisionConfig = Annotated[Auto | Float32 | Bfloat16 | Float16, Field(discriminator="kind")]


def fall_back_to_float32(asked: str, hardware: Hardware) -> Decision:
    return Decision(torch.float32, f"{asked} is not used because {hardware.reason}: training in float32")


def probe_hardware(device: torch.device) -> Hardware:
    """The precision support of a device."""
    match device.type:
        case "cuda":
            return gpu_hardware(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        case "cpu":
            return cpu_hardware(torch.cpu.get_capabilities())
        case other:
            return Hardware(False, False, torch.float32, f"it is untested on {other} devices")


def gpu_hardware(name: str, capability: tuple[int, int]) -> Hardware:
    """Tensor cores support float16 from capability 7.0, bfloat16 from 8.0."""
    bfloat16, float16 = capability >= (8, 0), capability >= (7, 0)
    best = torch.bfloat16 if bfloat16 else torch.float16 if float16 else torch.float32
    return Hardware(bfloat16, float16, best, f"{name} (capability {capability[0]}.{capability[1]}) does not support it")


def cpu_hardware(capabilities: Mapping[str, Any]) -> Hardware:
    """A CPU uses 16 bits only on request: even with the instructions the gain depends on the model."""
    name = capabilities.get("cpu_name", capabilities["architecture"])
    bfloat16 = any(capabilities.get(instruction, False) for instruction in BFLOAT16)
    float16 = any(capabilities.get(instruction, False) for instruction in FLOAT16)
    return Hardware(bfloat16, float16, torch.float32, f"this processor ({name}) has no instructions for it")


class Precision:
    """The autocast context and the gradient scaler of a run.

    Only float16 uses the scaler; for other types it is disabled, so the loop is the same for all. The scaler skips a
    step whose gradients overflow, and lowers the scale.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.scaler = GradScaler(device.type, enabled=dtype == torch.float16)

    def autocast(self) -> autocast:
        return autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def state(self) -> dict[str, float]:
        """The state of the scaler; empty if it is disabled."""
        return self.scaler.state_dict()

    def restore(self, state: Mapping[str, float]) -> None:
        """Load a saved state. It is empty for a run saved in another precision; then the scaler starts anew."""
        if state:
            self.scaler.load_state_dict(dict(state))
