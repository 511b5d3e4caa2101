"""Calls into libraries, found in small trees with every form of import, and in DeepInfer's own source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from archwright.calls import LIBRARIES, OWN_OPERATIONS, Census, Kind, find_calls
from archwright.components import components
from archwright.errors import ArchwrightError
from archwright.sources import fetch

Find = Callable[..., Census]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """Write files into a tree and look for calls into the library `lib`."""

    def write_and_find(files: Mapping[str, str] | str, *libraries: str) -> Census:
        for name, text in ({"app.py": files} if isinstance(files, str) else files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return find_calls(tmp_path, libraries or ("lib",))

    return write_and_find


def called(census: Census) -> list[str]:
    """Entry points that are called, with their lines."""
    return [f"{call.entry}:{call.line}" for call in census.calls if call.kind is Kind.CALL]


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("import lib\nlib.f()", "lib.f"),
        ("import lib as l\nl.f()", "lib.f"),
        ("import lib.sub\nlib.sub.f()", "lib.sub.f"),
        ("import lib.sub as s\ns.f()", "lib.sub.f"),
        ("from lib import f\nf()", "lib.f"),
        ("from lib.sub import f as g\ng()", "lib.sub.f"),
        ("from lib import sub\nsub.deep.f()", "lib.sub.deep.f"),
        ("import lib; h = lib.f\nh()", "lib.f"),
        ("import lib; h = lib.f if 1 else None\nh()", "lib.f"),
        ("import lib; h = None or lib.f\nh()", "lib.f"),
        ("import lib; a, b = lib.f, 1\na()", "lib.f"),
        ("import lib; from functools import partial; h = partial(lib.f, 1)\nh()", "lib.f"),
        ("import lib; h = getattr(lib, 'f', None)\nh()", "lib.f"),
        ("import lib\n(h := lib.f)()", "lib.f"),
        ("import lib\nfor h in (lib.f, print): h()", "lib.f"),
        ("import lib\n@lib.f()\ndef g(): pass", "lib.f"),
        ("import lib\nx = lambda: lib.f()", "lib.f"),
        ("import lib\nasync def g():\n  return [await lib.f() for _ in x]", "lib.f"),
        ("import lib\nprint(f'{lib.f()}')", "lib.f"),
        ("try:\n  from lib import f\nexcept ImportError: f = None\nf()", "lib.f"),
    ],
)
def test_every_way_to_a_function(find: Find, text: str, entry: str) -> None:
    census = find(text)

    assert {call.entry for call in census.calls if call.kind is Kind.CALL} == {entry}
    assert {call.library for call in census.calls} == {"lib"}


@pytest.mark.parametrize(
    "text",
    [
        "import lib2\nlib2.f()",
        "import other as lib\nlib.f()",
        "from lib import f\ndef g(f):\n  f()",
        "from lib import f\ndef g():\n  f = print\n  f()",
        "from lib import f\nprint([f() for f in x])",
        "from .lib import f\nf()",
        "x.lib.f()",
        "import lib",
    ],
)
def test_what_only_looks_like_it(find: Find, text: str) -> None:
    assert called(find(text)) == []


def test_relative_imports_and_re_exports(find: Find) -> None:
    census = find(
        {
            "app/__init__.py": "from .low import f as g",
            "app/low.py": "from lib import f",
            "app/sub/deep.py": "from ..low import f\nfrom .. import g\nfrom . import near\nf()\ng()\nnear.h()",
            "app/sub/near.py": "from lib.x import *\nfrom app.low import *\nimport lib\nh = lib.h\nf()",
        }
    )

    assert called(census) == ["lib.f:4", "lib.f:5", "lib.f:5", "lib.h:6"]


def test_methods_of_what_a_library_made(find: Find) -> None:
    census = find(
        {
            "app/own.py": (
                "import lib\nfrom lib import Buffer\n"
                "class Base:\n    def __init__(self):\n        self.inherited = lib.Other()\n"
                "class Owner(Base):\n"
                "    spare: Buffer | None = None\n"
                "    def __init__(self, given: 'Buffer'):\n"
                "        self.made = Buffer(1)\n"
                "        self.given = given\n"
                "        self.func = lib.a if given else lib.b\n"
                "    @property\n"
                "    def shown(self) -> Buffer | None: return self.made\n"
                "    def make(self) -> lib.Handle: ...\n"
                "    def use(self):\n"
                "        self.made.send()\n"
                "        self.given.take()\n"
                "        self.spare.wait()\n"
                "        self.shown.show()\n"
                "        self.make().join()\n"
                "        self.inherited.far()\n"
                "        self.func()\n"
                "        self.made.tensor.data_ptr()\n"
                "        for x in (self.made, self.given): x.destroy()\n"
                "owner = Owner(None)\n"
            ),
            "app/user.py": "from app.own import owner\nowner.made.late()\nwith owner.given as g: g.inside()\n",
        }
    )

    found = dict(line.split(":") for line in called(census))
    assert found.pop("lib.Buffer") == "9"
    assert found.pop("lib.Other") == "5"
    assert found == {
        "lib.Buffer.send": "16",
        "lib.Buffer.take": "17",
        "lib.Buffer.wait": "18",
        "lib.Buffer.show": "19",
        "lib.Handle.join": "20",
        "lib.Other.far": "21",
        "lib.a": "22",
        "lib.b": "22",
        "lib.Buffer.destroy": "24",
        "lib.Buffer.late": "2",
        "lib.Buffer.inside": "3",
    }


def test_kinds_functions_and_devices(find: Find) -> None:
    census = find(
        "import lib\n"
        "class C:\n"
        "    def m(self, x: lib.T) -> lib.R:\n"
        "        if P.is_npu:\n            return lib.a()\n"
        "        lib.b()\n"
        "        return lib.c if P.is_gpu and x else lib.d\n"
        "def f():\n"
        "    if not is_ascend() or lib.e():\n        pass\n    else:\n        lib.g()\n"
        "    lib.h(lib.data)\n"
    )

    found = {call.entry: (str(call.kind), call.function, call.device) for call in census.calls}
    assert found == {
        "lib.T": ("annotation", "C.m", ""),
        "lib.R": ("annotation", "C.m", ""),
        "lib.a": ("call", "C.m", "npu"),
        "lib.b": ("call", "C.m", "gpu"),
        "lib.c": ("reference", "C.m", "gpu"),
        "lib.d": ("reference", "C.m", "gpu"),
        "lib.e": ("call", "f", ""),
        "lib.g": ("call", "f", "npu"),
        "lib.h": ("call", "f", ""),
        "lib.data": ("reference", "f", ""),
    }


def test_tests_benchmarks_and_their_helpers_are_left_out_by_rule(find: Find) -> None:
    census = find(
        {
            "tests/helper.py": "import lib\nlib.t1()",
            "app/conftest.py": "import lib\nlib.t2()",
            "app/test_x.py": "import lib\nlib.t3()",
            "app/op.py": (
                "import lib, pytest\n"
                "def op(): lib.real()\n"
                "def _shared(): lib.shared()\n"
                "CASES = [lib.t4()]\n"
                "def op_ref(): lib.t5(); deeper()\n"
                "def deeper(): lib.t6()\n"
                "def test_op(): op(); op_ref(); _shared(); CASES\n"
                "@pytest.fixture\ndef given(): lib.t7()\n"
                "class TestOp:\n    def m(self): lib.t8()\n"
            ),
            "app/user.py": "from app.op import op, op_ref, _shared\n_shared()\nop()\n",
        }
    )

    assert sorted({call.entry for call in census.calls}) == ["lib.real", "lib.shared"]
    assert "app/op.py:5 op_ref" in census.tests
    assert "app/op.py:6 deeper" in census.tests
    assert "app/test_x.py" in census.tests
    assert census.files == 2


def test_a_library_inside_the_tree_does_not_count_itself(find: Find) -> None:
    files = {
        "app/ops/a.py": "from app.ops import b\nimport lib\ndef a(): b.b(); lib.f()",
        "app/ops/b.py": "def b(): pass",
        "app/model.py": "from app.ops.a import a\na()",
    }
    assert called(find(files, "app.ops", "lib")) == ["app.ops.a.a:2", "lib.f:3"]


def test_files_that_cannot_be_read_are_named(find: Find) -> None:
    census = find({"bad.py": "def f(:\n", "nul.py": "a\0b", "good.py": "import lib\nlib.f()"})

    assert set(census.unread) == {"bad.py", "nul.py"}
    assert "SyntaxError" in census.unread["bad.py"]
    assert called(census) == ["lib.f:2"]


def test_circles_end(find: Find) -> None:
    census = find(
        {
            "a.py": "from b import x, y\nx()\nz = y\nclass C(C): pass\nC().m()\nw = w or w.w\nw()",
            "b.py": "from a import z as y\nfrom b import x\nimport lib\ny = y or lib.f\ny()",
        }
    )
    assert called(census) == ["lib.f:5"]


# ------------------------------------------------------------------------------------------------- DeepInfer's source


@pytest.fixture(scope="module")
def deepinfer() -> tuple[Path, Census]:
    """The real tree, where the cache has it."""
    try:
        tree = fetch(components()["engine"], offline=True).path
    except ArchwrightError as error:
        pytest.skip(f"DeepInfer's source is not in the cache ({error.code})")
    return tree, find_calls(tree)


def test_deepinfers_calls_by_library(deepinfer: tuple[Path, Census]) -> None:
    _, census = deepinfer
    entries = {call.entry: call.library for call in census.calls if call.kind is Kind.CALL}
    counts = {library: list(entries.values()).count(library) for library in LIBRARIES}

    # lower bounds, counted once by another, cruder program over the same tree
    assert counts["flash_mla"] == 6
    assert counts["deep_gemm"] >= 30
    assert counts["deep_ep"] >= 20
    assert counts["tile_kernels"] >= 25
    assert counts[OWN_OPERATIONS] >= 40
    assert census.unread == {}
    assert not [entry for entry in entries if "_ref" in entry or ".test" in entry]


@pytest.mark.parametrize(
    ("entry", "file", "text"),
    [
        ("deep_gemm.fp8_fp4_gemm_nt", "deepinfer/model_executor/layers/linear.py", "fp8_fp4_gemm_nt("),
        ("deep_gemm.bf16_mega_moe", "deepinfer/model_executor/models/v4_modules/mlp.py", "self.mega_moe_func("),
        ("deep_gemm.SymmBuffer", "deepinfer/model_executor/parallel_utils/userbuffer.py", "deep_gemm.SymmBuffer("),
        ("deep_ep.EPBuffer.dispatch", "deepinfer/model_executor/models/v4_modules/mlp.py", "self.ep_buffer.dispatch("),
        ("deep_ep.EngramBuffer.fetch", "deepinfer/model_executor/models/v4_modules/engram.py", "self._buffer.fetch("),
        ("deep_ep.BucketBuffer.all_gather", "deepinfer/model_executor/parallel_utils/cp.py", "_buffer.all_gather("),
        ("flash_mla.flash_mla_with_kvcache", "deepinfer/model_executor/layers/attention_backend.py", "_with_kvcache("),
        ("tile_kernels.moe.moe_topk_gate", "deepinfer/model_executor/models/v4_modules/mlp.py", "moe_topk_gate("),
        ("tile_kernels.get_num_sms", f"{OWN_OPERATIONS.replace('.', '/')}/cuda/candidate_blocks.py", "get_num_sms("),
        (f"{OWN_OPERATIONS}.gather.gather", "deepinfer/model_executor/input_metadata/input_metadata.py", "gather("),
    ],
)
def test_deepinfers_calls_stand_where_they_are_said_to(
    deepinfer: tuple[Path, Census], entry: str, file: str, text: str
) -> None:
    tree, census = deepinfer
    places = [call for call in census.calls if call.entry == entry and call.file == file and call.kind is Kind.CALL]

    assert places
    lines = (tree / file).read_text().splitlines()
    assert all(text in lines[call.line - 1] for call in places)
