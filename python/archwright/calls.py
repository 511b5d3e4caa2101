"""Every call that a tree of Python makes into some libraries: DeepInfer's, into the kernel libraries and its own ops.

They are found by parsing (pyvalues.py); there is no list of them anywhere. Left out are

- tests and benchmarks: files `conftest.py`, `test_*.py` and `*_test.py`, folders `tests`, `testing`, `benchmarks`; and
  in the other files functions called `test_*` or decorated with pytest's marks and fixtures, and what nothing but
  those uses (upstream keeps tests beside the operations);
- what a library calls inside itself.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .pyvalues import Module, PythonTree, Scope

__all__ = ["LIBRARIES", "OWN_OPERATIONS", "Call", "Census", "Kind", "find_calls"]

#: DeepInfer's own kernels: a library inside its package.
OWN_OPERATIONS = "deepinfer.model_executor.layers.tilelang_ops"
LIBRARIES = ("flash_mla", "deep_gemm", "deep_ep", "tile_kernels", OWN_OPERATIONS)

_TEST_FOLDERS = frozenset(["tests", "test", "benchmarks", "benchmark"])
#: Folders of DeepInfer that only one kind of device uses (platform.py there names them), and its questions.
_DEVICE_FOLDERS = {"cuda": "gpu", "asc": "npu", "npu_ops": "npu"}
_DEVICE_QUESTIONS = {"is_gpu": "gpu", "is_npu": "npu", "is_ascend": "npu"}
_OTHER = {"gpu": "npu", "npu": "gpu", "": ""}


class Kind(StrEnum):
    CALL = "call"
    #: Handed on, compared, or an attribute that is read.
    REFERENCE = "reference"
    ANNOTATION = "annotation"


@dataclass(frozen=True, order=True)
class Call:
    """One place where `entry`, a dotted name of `library`, is used.

    `function` is what it stands in ("" for a module's own code), `device` the only kind (gpu, npu) that gets there,
    as far as folders and conditions say; "" for both.
    """

    entry: str
    library: str
    file: str
    line: int
    kind: Kind
    function: str = ""
    device: str = ""


@dataclass(frozen=True)
class Census:
    """What was found in `files` files. `tests` are the files and functions that were left out by the rule above."""

    calls: tuple[Call, ...]
    files: int
    tests: tuple[str, ...]
    unread: dict[str, str]

    def by_entry(self) -> dict[str, tuple[Call, ...]]:
        """The calls of each entry point, in order of names."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.entry, []).append(call)
        return {entry: tuple(places) for entry, places in sorted(found.items())}

    def as_dict(self) -> dict[str, Any]:
        return {"calls": [vars(call) for call in self.calls]} | {
            name: value for name, value in vars(self).items() if name != "calls"
        }


def find_calls(root: Path, libraries: Sequence[str] = LIBRARIES) -> Census:
    """Every use of `libraries` in the Python files under `root`, which holds the top packages."""
    tree = PythonTree(root)
    live, tests = _without_tests(tree)
    found: set[Call] = set()
    for name, statements in live.items():
        module = tree.modules[name]
        own = next((library for library in libraries if _is_in(name, library)), None)
        walker = _Walker(tree, module, tuple(library for library in libraries if library != own))
        walker.body(statements, tree.scope(module.tree), _device_of(module.file))
        found |= walker.found
    return Census(tuple(sorted(found)), len(live), tests, tree.unread)


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _device_of(file: str) -> str:
    parts = Path(file).parts[:-1]
    return next((device for folder, device in _DEVICE_FOLDERS.items() if folder in parts), "")


# ----------------------------------------------------------------------------------------------------------- tests


def _without_tests(tree: PythonTree) -> tuple[dict[str, list[ast.stmt]], tuple[str, ...]]:
    """The statements of each module that are no test, and what was left out."""
    live: dict[str, list[ast.stmt]] = {}
    dropped: dict[str, list[ast.stmt]] = {}
    left_out: list[str] = []
    for name, module in tree.modules.items():
        if _is_test_file(module.file):
            dropped[name] = module.tree.body
            left_out.append(module.file)
            continue
        dropped[name] = [node for node in module.tree.body if _is_test(node)]
        live[name] = [node for node in module.tree.body if not _is_test(node)]
        left_out += [f"{module.file}:{node.lineno} {_defined(node)[0]}" for node in dropped[name]]
    left_out += _drop_helpers(tree, live, dropped)
    return live, tuple(left_out)


def _is_test_file(file: str) -> bool:
    path = Path(file)
    named = path.name == "conftest.py" or path.stem.startswith("test_") or path.stem.endswith("_test")
    return named or bool(_TEST_FOLDERS & set(path.parts[:-1]))


def _is_test(node: ast.stmt) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    marks = {n.id for mark in node.decorator_list for n in ast.walk(mark) if isinstance(n, ast.Name)}
    return node.name.startswith(("test_", "Test")) or "pytest" in marks


def _drop_helpers(tree: PythonTree, live: dict[str, list[ast.stmt]], tests: dict[str, list[ast.stmt]]) -> Iterator[str]:
    """Take out what is only used by tests, directly or through what was taken out: names are compared, not meanings."""
    wanted = {word for nodes in tests.values() for node in nodes for word in _words(node)}
    words = {id(node): _words(node) for nodes in live.values() for node in nodes}
    uses = Counter(word for found in words.values() for word in found)
    while True:
        taken = [
            (name, node)
            for name, nodes in live.items()
            for node in nodes
            if (defined := set(_defined(node))) & wanted
            and all(uses[word] == (word in words[id(node)]) for word in defined)
        ]
        if not taken:
            return
        for name, node in taken:
            live[name].remove(node)
            uses.subtract(words[id(node)])
            wanted |= words[id(node)]
            yield f"{tree.modules[name].file}:{node.lineno} {_defined(node)[0]}"


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement on a module's top level defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _words(node: ast.AST) -> frozenset[str]:
    """Every identifier in `node` that may refer to something defined elsewhere; importing it is no use of it yet."""
    words: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name, asname=str()):
                words.add(name)
            case ast.Constant(value=str(name)) if name.isidentifier():  # getattr, __all__
                words.add(name)
    return frozenset(words)


# -------------------------------------------------------------------------------------------------------- walking


class _Walker:
    """Goes through the statements of one module and notes what belongs to one of `libraries`."""

    def __init__(self, tree: PythonTree, module: Module, libraries: tuple[str, ...]) -> None:
        self._tree, self._module, self._libraries = tree, module, libraries
        self.found: set[Call] = set()

    def body(self, statements: Sequence[ast.stmt], scope: Scope, device: str) -> None:
        """Statements one after another: what follows `if PLATFORM.is_npu: return` is for the other device."""
        for node in statements:
            self._visit(node, scope, device)
            if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], (ast.Return, ast.Raise)):
                device = device or _sides(node.test)[1]

    def _visit(self, node: ast.AST, scope: Scope, device: str, kind: Kind = Kind.REFERENCE) -> None:
        match node:
            case ast.Name() | ast.Attribute():
                self._note(node, scope, device, kind)
            case ast.Call():
                self._visit_call(node, scope, device)
            case ast.If() | ast.IfExp() | ast.While():
                self._visit_branches(node, scope, device)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                self._visit_definition(node, scope, device)
            case ast.AnnAssign():
                self._visit(node.annotation, scope, device, Kind.ANNOTATION)
                for part in (node.target, node.value):
                    if part is not None:
                        self._visit(part, scope, device)
            case _:
                self._visit_fields(node, scope, device, kind)

    def _visit_fields(self, node: ast.AST, scope: Scope, device: str, kind: Kind) -> None:
        scope = self._tree.scope(node, scope)
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.body(value, scope, device)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._visit(child, scope, device, kind)

    def _visit_call(self, node: ast.Call, scope: Scope, device: str) -> None:
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            self._note(node.func, scope, device, Kind.CALL)
        else:
            self._record(node.func, scope, device, Kind.CALL)
            self._visit(node.func, scope, device)
        followed = isinstance(node.func, ast.Name) and node.func.id == "getattr" and self._tree.values(node, scope)
        for part in (*node.args[1 if followed else 0 :], *node.keywords):
            self._visit(part, scope, device)

    def _visit_branches(self, node: ast.If | ast.IfExp | ast.While, scope: Scope, device: str) -> None:
        yes, no = _sides(node.test)
        self._visit(node.test, scope, device)
        for part, side in ((node.body, yes), (node.orelse, no)):
            if isinstance(part, list):
                self.body(part, scope, device or side)
            else:
                self._visit(part, scope, device or side)

    def _visit_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef, scope: Scope, device: str
    ) -> None:
        inner = self._tree.scope(node, scope)
        if isinstance(node, ast.Lambda):
            self._visit(node.args, inner, device)
            self._visit(node.body, inner, device)
            return
        for mark in node.decorator_list:
            self._visit(mark, scope, device)
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *node.keywords):
                self._visit(base, scope, device)
        else:
            self._visit_signature(node, inner, device)
        self.body(node.body, inner, device)

    def _visit_signature(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, device: str) -> None:
        arguments = node.args
        for annotated in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if annotated.annotation is not None:
                self._visit(annotated.annotation, scope, device, Kind.ANNOTATION)
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self._visit(default, scope, device)
        if node.returns is not None:
            self._visit(node.returns, scope, device, Kind.ANNOTATION)

    def _note(self, node: ast.Name | ast.Attribute, scope: Scope, device: str, kind: Kind) -> None:
        """Note what a dotted name stands for; where that is nothing of the libraries, look into its parts."""
        noted = self._record(node, scope, device, kind)
        if isinstance(node, ast.Attribute) and not (noted and isinstance(node.value, (ast.Name, ast.Attribute))):
            self._visit(node.value, scope, device)

    def _record(self, node: ast.expr, scope: Scope, device: str, kind: Kind) -> bool:
        noted = False
        for value in self._tree.values(node, scope):
            library = next((library for library in self._libraries if _is_in(value.name, library)), None)
            if library is None or (value.made and kind is not Kind.CALL):
                continue
            entry = f"{value.name}.__call__" if value.made else value.name
            where = scope.name.removeprefix(self._module.name).lstrip(".")
            self.found.add(Call(entry, library, self._module.file, node.lineno, kind, where, device))
            noted = True
        return noted


def _sides(test: ast.expr) -> tuple[str, str]:
    """The kind of device for which a condition holds, and the one for which it does not; "" for either."""
    match test:
        case ast.Attribute(attr=name) | ast.Name(id=name) if name in _DEVICE_QUESTIONS:
            return _DEVICE_QUESTIONS[name], _OTHER[_DEVICE_QUESTIONS[name]]
        case ast.Call():
            return _sides(test.func)
        case ast.UnaryOp(op=ast.Not()):
            return _sides(test.operand)[::-1]
        case ast.BoolOp(op=ast.And()):
            return next(filter(None, (_sides(part)[0] for part in test.values)), ""), ""
        case ast.BoolOp(op=ast.Or()):
            return "", next(filter(None, (_sides(part)[1] for part in test.values)), "")
    return "", ""
