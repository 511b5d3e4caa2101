"""The shipped shapes, lowered for Ascend on a machine without NPU and without CANN: the real upstream code, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archwright.wheelfile import read_wheel

from .conftest import Run

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(3400)]


def test_every_operation_of_the_shipped_shapes_lowers(run: Run, tmp_path: Path) -> None:
    status, said, _ = run("aot", "ascend950", "--lower-only", "--json", "--out", str(tmp_path))

    assert status == 0, said
    told = json.loads(said)
    (wheel,) = told["wheels"]
    assert wheel["lowered"] == {"operations": 47, "lowered": 47, "kernels": 159, "reasons": {}}
    assert wheel["evidence"] is None
    assert told["device_compile"] == "not verified here"
    assert not list(tmp_path.glob("evidence/*level*"))
    members = read_wheel(Path(wheel["path"])).members
    claims = json.loads(next(data for name, data in members.items() if name.endswith("/archwright.json")))["claims"]
    assert claims["compiles"].startswith("not shown")
    assert claims["device_compile"] == "not verified here"

    status, said, _ = run("inspect", "--json", wheel["path"])
    assert (status, json.loads(said)["wheels"][0]["verdict"]) == (0, "unknown")

    status, said, _ = run("coverage", "ascend950", "--json", "--pack", wheel["path"])
    counts = json.loads(said)["counts"]
    assert "covered" not in {state for states in counts.values() for state in states}
    assert counts["deepinfer.model_executor.layers.tilelang_ops"]["lowered"] > 30
