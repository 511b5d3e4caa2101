"""What csrc/aot/worker.py remembers of a lowering: used only while everything that it came from is the same."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from archwright.launcher import REMEMBERED

AOT = Path(__file__).parent.parent / "csrc" / "aot"
FIGURES = '{"cube_cores": 32}'


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(AOT)
    yield importlib.import_module("worker")
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def options(tmp_path: Path, worker: ModuleType) -> argparse.Namespace:
    """The folders of a build in which one kernel was lowered and remembered."""
    (tmp_path / "build" / "cases").mkdir(parents=True)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "cases.py").write_text("def copy(model):\n    raise SystemExit('it ran')\n    yield\n")
    facts = tmp_path / "build" / "cases" / "process.json"
    facts.write_text(json.dumps({"operations": {"copy": {"expected": True}}, "dimensions": {}, "tokens": {}}))
    (tmp_path / "build" / "environment.json").write_text('{"locks": "of today"}')
    cache = tmp_path / "jit"
    name = worker.ascend_lowering.Sources(cache / "ascend", "/templates")._keep(["k"], code="code", options=["-O2"])
    made = argparse.Namespace(
        cases=tmp_path / "recipe" / "cases.py", cache=cache, facts=facts, out=tmp_path / "build" / "process.json"
    )
    case = {"shape": {"m": 1}, "outcome": "lowered", "reason": "", "kernels": [f"ascend/{name}"]}
    result = [{"operation": "copy", "cases": [case], "kernels": [f"ascend/{name}"]}]
    worker.write(worker.Remembered(made, FIGURES).path, json.dumps(result))
    return made


def run(worker: ModuleType, options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHWRIGHT_LOWER", FIGURES)
    words = ["--cases", options.cases, "--cache", options.cache, "-c", options.facts, "-o", options.out]
    monkeypatch.setattr(sys, "argv", ["worker.py", *map(str, words)])
    worker.main()


def test_the_same_inputs_are_not_lowered_again(
    worker: ModuleType, options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(worker, options, monkeypatch)
    assert capfd.readouterr().out.encode() == REMEMBERED, "the launcher calls that an answer of a cache"

    (operation,) = json.loads(options.out.read_text())
    assert operation["cases"][0]["outcome"] == "lowered"
    assert not list(options.out.parent.glob("*.part"))


@pytest.mark.parametrize("changed", ["recipe/cases.py", "build/cases/process.json", "build/environment.json"])
def test_another_input_is_another_lowering(
    changed: str, worker: ModuleType, options: argparse.Namespace, tmp_path: Path
) -> None:
    with (tmp_path / changed).open("a") as file:
        file.write("\n")

    assert worker.Remembered(options, FIGURES).read() is None


def test_another_device_is_another_lowering(worker: ModuleType, options: argparse.Namespace) -> None:
    assert worker.Remembered(options, FIGURES).read() is not None
    assert worker.Remembered(options, '{"cube_cores": 36}').read() is None


@pytest.mark.parametrize("damage", ["lost", "cut off", "changed"])
def test_a_source_that_is_not_whole_is_lowered_again(
    damage: str, worker: ModuleType, options: argparse.Namespace
) -> None:
    (source,) = options.cache.glob("ascend/*/kernel.asc")
    if damage == "lost":
        source.unlink()
    else:
        source.write_text("" if damage == "cut off" else "c0de")

    assert worker.Remembered(options, FIGURES).read() is None


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"operation": "copy"}]'])
def test_a_damaged_result_is_none(text: str, worker: ModuleType, options: argparse.Namespace) -> None:
    remembered = worker.Remembered(options, FIGURES)
    remembered.path.write_text(text)

    assert remembered.read() is None


def test_another_release_of_the_worker_is_another_lowering(
    worker: ModuleType, options: argparse.Namespace, tmp_path: Path
) -> None:
    copy = tmp_path / "aot"
    copy.mkdir()
    for file in AOT.glob("*.py"):
        (copy / file.name).write_bytes(file.read_bytes())
    worker.__file__ = str(copy / "worker.py")
    assert worker.Remembered(options, FIGURES).read() is not None
    (copy / "casekit.py").write_text("# another\n")

    assert worker.Remembered(options, FIGURES).read() is None
