"""What a build for Ascend needs besides what every build does: torch_npu's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .targets import Target

if TYPE_CHECKING:
    from .backend import Request

__all__ = ["ascend_values", "device_compile"]


def device_compile(target: Target) -> str | None:
    """What every result for Ascend carries until a CANN machine's evidence says otherwise; None for other vendors."""
    return "not verified here" if target.vendor == "huawei" else None


def ascend_values(request: Request) -> dict[str, object]:
    """What CMake has to know (cmake/ArchwrightAscend.cmake)."""
    return {"ARCHWRIGHT_TORCH_NPU": request.environment.runtime_site / "torch_npu"}
