"""Evidence: only about what passed, and only as long as the wheel is the same file (cases A3, F4)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.components import Cell, CellState
from archwright.evidence import Evidence, evidence_path, read_evidence, write_evidence
from archwright.sources import sha256_of

NAME = "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_34_x86_64.whl"
CELL = Cell("tiny", "sm100", os.uname().machine, CellState.BUILD)


def report(wheel: Path) -> dict[str, Any]:
    return {
        "wheel": str(wheel),
        "sha256": sha256_of(wheel),
        "component": "tiny",
        "target": "sm100",
        "tier": "official",
        "verdict": "unknown",
        "findings": [
            {"code": "AW416", "passed": True},
            {"code": "AW418", "passed": True},
            {"code": "AW424", "passed": False},
        ],
        "arches": ["sm_100a"],
        "not_verified": ["correct: no device"],
    }


@pytest.fixture
def wheel(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    return make_wheel(tmp_path / NAME)


def test_what_was_written_is_read(wheel: Path) -> None:
    path = write_evidence(wheel, report(wheel), {"nvcc": "13.2.86"}, "f" * 64)
    assert path == evidence_path(wheel, 1)
    (record,) = read_evidence(wheel.parent)
    assert (record.level, record.claim, record.gates) == (1, "compiles", ("AW416", "AW418"))
    assert record.freeze == "f" * 64
    assert record.is_about(CELL)
    assert not record.is_about(replace(CELL, target="sm90"))
    assert not record.is_about(replace(CELL, processor="riscv64"))


def test_it_says_what_machine_it_was_and_not_which(wheel: Path) -> None:
    text = write_evidence(wheel, report(wheel), {}, "f" * 64).read_text()
    assert json.loads(text)["machine"]["processor"] == os.uname().machine
    assert socket.gethostname() not in text


def test_f4_a_wheel_that_changed_has_no_evidence(wheel: Path, make_wheel: Callable[..., Path]) -> None:
    write_evidence(wheel, report(wheel), {}, "f" * 64)
    make_wheel(wheel, tamper=b"x")
    assert list(read_evidence(wheel.parent)) == []


def test_a_wheel_that_is_gone_has_no_evidence(wheel: Path) -> None:
    write_evidence(wheel, report(wheel), {}, "f" * 64)
    wheel.unlink()
    assert list(read_evidence(wheel.parent)) == []


@pytest.mark.parametrize("changes", [{"verdict": "failed"}, {"wheel": "/dist/another-1.0-py3-none-any.whl"}])
def test_there_is_no_evidence_of_a_failure(changes: dict[str, Any], wheel: Path) -> None:
    told = {**report(wheel), **changes}
    with pytest.raises(ValueError, match="has not passed"):
        write_evidence(wheel, told, {}, "f" * 64)
    assert not evidence_path(wheel, 1).exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "level": 1}', '{"schema": 1', "3"])
def test_a_damaged_record_shows_nothing(text: str, wheel: Path) -> None:
    path = evidence_path(wheel, 1)
    path.parent.mkdir()
    path.write_text(text)
    assert list(read_evidence(wheel.parent)) == []


def test_a_record_cannot_point_outside_its_folder(wheel: Path, tmp_path: Path) -> None:
    path = write_evidence(wheel, report(wheel), {}, "f" * 64)
    data = json.loads(path.read_text())
    (tmp_path / "dist" / "evidence").mkdir(parents=True)
    (tmp_path / "dist" / "evidence" / path.name).write_text(json.dumps({**data, "wheel": f"../{NAME}"}))
    assert list(read_evidence(tmp_path / "dist")) == []
    assert [type(record) for record in read_evidence(tmp_path)] == [Evidence]
