"""Pytest plugin of upstream_suite.py: runs the tests that it is asked for, one by one, and says what each one did.

The rows of the MoE tests' tensors depend on values: those inputs are made on the CPU, so that there are any.

It is loaded by the Python of the runtime half, under the simulated device. Nothing of `archwright` is imported there.
Requests (a node id) and answers are JSON lines over the two pipes named in ARCHWRIGHT_SUITE_PIPES.

Nothing is computed, so assertions about values cannot hold. An `assert` of a test is evaluated, counted and never
fails; so do upstream's and torch's functions that compare tensors. Everything else that a test raises is its outcome.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import time
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

COUNTS = {"held": 0, "not held": 0}
CURRENT = {}


def unjudged(held):
    """What takes the place of `assert`."""
    COUNTS["held" if held else "not held"] += 1


class Unjudged(ast.NodeTransformer):
    """`assert x, y` becomes a call that evaluates x and goes on."""

    def visit_Assert(self, node):
        call = ast.Call(ast.Name("__archwright_unjudged__", ast.Load()), [node.test], [])
        return ast.copy_location(ast.Expr(call), node)


def rewrite_asserts(tree, *_args, **_options):
    Unjudged().visit(tree)
    ast.fix_missing_locations(tree)


rewrite.rewrite_asserts = rewrite_asserts  # pytest calls it for every test module
builtins.__archwright_unjudged__ = unjudged


def compare_nothing(*_args, **_options):
    COUNTS["not held"] += 1


def on_cpu(make, generator):
    """`make` of upstream's test data, computed for once."""

    def made(params):
        get_device, generator.get_device = generator.get_device, lambda: "cpu"
        try:
            return make(params).to(get_device())
        finally:
            generator.get_device = get_device

    return made


def time_nothing(function, **_options):
    """In the place of the benchmarks' timer (milliseconds): the kernel is called, and there is nothing to measure."""
    function()
    return 1.0


def pytest_configure(config):
    import torch
    from tile_kernels.testing import generator, numeric
    from tile_kernels.testing.pytest import benchmark

    # before a test module takes its own reference
    numeric.assert_equal = numeric.check_bias = torch.testing.assert_close = compare_nothing
    benchmark.do_bench = time_nothing
    generator.generate_topk_idx = on_cpu(generator.generate_topk_idx, generator)


def words(error):
    """What an exception says. A compiler's comes with the whole source: its own lines are enough."""
    text = str(error)
    if len(text) < 1000:
        return text
    lines = [line for line in text.splitlines() if re.search(r"\berror\b", line, re.IGNORECASE)]
    return "\n".join(lines[:5])[:1000] or text[:1000]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.outcome != "passed" and CURRENT.get("outcome", "passed") == "passed":
        CURRENT.update(outcome=report.outcome, when=call.when)
        if call.excinfo is not None:
            path, _, function = str(call.excinfo.traceback[-1].path), 0, call.excinfo.traceback[-1].name
            CURRENT.update(type=call.excinfo.typename, reason=words(call.excinfo.value), where=f"{path}:{function}")
            CURRENT["trace"] = [f"{entry.path}:{entry.lineno + 1}" for entry in call.excinfo.traceback][-8:]
    return report


class Records:
    """What the simulated device wrote down for this process since the last look."""

    def __init__(self):
        self.at = 0

    def new(self):
        path = Path(os.environ["ARCHWRIGHT_SIMULATION_LOG"]) / f"{os.getpid()}.jsonl"
        if not path.is_file():
            return []
        with path.open(encoding="utf-8") as file:
            file.seek(self.at)
            lines = file.readlines()
            self.at = file.tell()
        return [json.loads(line) for line in lines]


def run(item, records):
    """Run one test; what it did."""
    CURRENT.clear()
    COUNTS.update({"held": 0, "not held": 0})
    records.new()
    begin = time.monotonic()
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    seen = records.new()
    launched = [record for record in seen if record["event"] == "launch"]
    kernels = [record["kernel"] for record in launched if not record.get("registered")]  # not torch's own
    loaded = {name for record in seen if record["event"] == "load" for name in record["kernels"]}
    return {
        "test": item.nodeid,
        "outcome": "passed",
        "seconds": round(time.monotonic() - begin, 2),
        "launches": len(kernels),
        "kernels": sorted(set(kernels)),
        "loaded": len(loaded),
        "not launched": sorted(loaded - set(kernels)),
        "events": sorted({record["event"] for record in seen} - {"launch", "load"}),
        "asserts": dict(COUNTS),
        **CURRENT,
    }


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    read, write = map(int, os.environ["ARCHWRIGHT_SUITE_PIPES"].split(","))
    with os.fdopen(read, encoding="utf-8") as requests, os.fdopen(write, "w", encoding="utf-8") as answers:

        def say(what):
            answers.write(json.dumps(what) + "\n")
            answers.flush()

        items = {item.nodeid: item for item in session.items}
        say({"items": list(items)})
        records = Records()
        for line in requests:
            say(run(items[json.loads(line)], records))
    return True
