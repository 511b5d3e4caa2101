"""benchmarks/upstream_suite.py: how tests are run one by one, chosen and judged; with a small suite and no GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from archwright.environment import Environment

ROOT = Path(__file__).resolve().parents[1]

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--run-benchmark", action="store_true")
"""
TESTS = """
import json, os, time
import torch
from tile_kernels.testing.numeric import assert_equal

def note(**record):
    path = f"{os.environ['ARCHWRIGHT_SIMULATION_LOG']}/{os.getpid()}.jsonl"
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\\n")

def test_values_are_not_judged():
    assert 1 == 2, "nothing was computed"
    assert_equal(1, 2)
    torch.testing.assert_close(1, 2)
    note(event="load", kernels=["k"])
    note(event="launch", kernel="k")
    note(event="launch", kernel="of torch", registered=True)

def test_without_a_kernel():
    pass

def test_that_leaves_one_out():
    note(event="load", kernels=["k", "never"])
    note(event="launch", kernel="k")

def test_of_upstream():
    raise NotImplementedError(f"not on this target: /some/folder/file.py {12345}")

def test_of_the_device():
    raise RuntimeError("CUDA error: invalid argument")

def test_that_is_refused():
    note(event="refused", function="cudaIpcGetMemHandle")
    os.abort()

def test_that_dies():
    os.abort()

def test_that_hangs():
    time.sleep(60)

def test_after_all_that():
    note(event="launch", kernel="k")
"""
STUBS = {
    "torch/__init__.py": "from . import testing\n",
    "torch/testing.py": "def assert_close(*_): raise AssertionError\n",
    "tile_kernels/testing/generator.py": "get_device = generate_topk_idx = print\n",
    "tile_kernels/testing/numeric.py": "def assert_equal(*_): raise AssertionError\ncheck_bias = assert_equal\n",
    "tile_kernels/testing/pytest/benchmark.py": "do_bench = None\n",
}


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("upstream_suite", ROOT / "benchmarks" / "upstream_suite.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "upstream_suite", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def results(suites: ModuleType, environment: Environment, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """What the tests of TESTS did, each run in a worker."""
    for name, text in {**STUBS, "suite_plugin.py": (ROOT / "benchmarks" / "suite_plugin.py").read_text()}.items():
        path = tmp_path / "pytest" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("sdist/tests", "log", "home", "runtime/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sdist" / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "sdist" / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "sdist" / "tests" / "test_small.py").write_text(TESTS)
    python = tmp_path / "runtime" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shutil.which(sys.executable)} "$@"\n')
    python.chmod(0o755)
    device = {"ARCHWRIGHT_SIMULATION_LOG": str(tmp_path / "log")}
    here = dataclasses.replace(environment, runtime=tmp_path / "runtime")
    suite = suites.Suite("sm100", here, tmp_path, (), 5, True, device)
    done = suites.Done(suite.results)
    first = suites.Worker(suite)
    suites._run(suite, done, first.items, first, 1)
    again = suites.Done(suite.results)
    again.load()
    assert again.tests == done.tests
    return {test.partition("::")[2]: result for test, result in again.tests.items()}


def test_each_test_is_judged_by_what_it_did(suites: ModuleType, results: dict[str, dict[str, Any]]) -> None:
    assert {name: suites.judge(result) for name, result in results.items()} == {
        "test_values_are_not_judged": ("complete", ""),
        "test_without_a_kernel": ("no kernel", ""),
        "test_that_leaves_one_out": ("no kernel", "loaded but not launched: never"),
        "test_of_upstream": ("upstream", "NotImplementedError: not on this target: file.py N"),
        "test_of_the_device": ("device", "CUDA error: invalid argument"),
        "test_that_is_refused": ("device", "AW704: cudaIpcGetMemHandle"),
        "test_that_dies": ("crash", "status -6"),
        "test_that_hangs": ("timeout", "status -9"),
        "test_after_all_that": ("complete", ""),
    }
    first = results["test_values_are_not_judged"]
    assert (first["launches"], first["kernels"]) == (1, ["k"])
    assert first["asserts"] == {"held": 0, "not held": 3}


def test_the_report_counts_what_was_not_run_as_not_complete(
    suites: ModuleType, results: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = suites.report("sm100", list(results.values()), 16)
    suites.show(found)
    suites.show(suites.report("sm100", list(results.values()), 9))

    said = capsys.readouterr().out
    assert "complete: 12.5%, goal 95%: not known, 7 tests are left" in said
    assert "complete: 22.2%, goal 95%: missed" in said

    assert (found["done"], found["complete"]) == (9, 2 / 16)
    assert found["kinds"] == {"complete": 2, "no kernel": 2, "device": 2, "upstream": 1, "crash": 1, "timeout": 1}
    assert len(found["tests"]) == 7
    assert found["not_verified"]


def test_a_sample_has_something_of_every_file_and_is_the_same_each_time(suites: ModuleType) -> None:
    tests = [f"{name}.py::t[{i}]" for name, count in (("a", 200), ("b", 3)) for i in range(count)]

    chosen = suites.sample(tests, 5)
    assert chosen == suites.sample(tests, 5)
    assert [sum(test.startswith(name) for test in chosen) for name in "ab"] == [10, 1]
    assert suites.sample(tests, 100) == tests


def test_a_benchmark_follows_its_test_and_none_is_lost(suites: ModuleType) -> None:
    tests = [f"a.py::t{kind}[{i}]" for kind in ("", "_benchmark") for i in range(50)]

    order = suites.spread(tests)
    assert sorted(order) == sorted(tests)
    assert all(order[i].replace("[", "_benchmark[") == order[i + 1] for i in range(0, 100, 2))
    assert order[0].endswith("[0]")
    assert not order[2].endswith("[1]")
