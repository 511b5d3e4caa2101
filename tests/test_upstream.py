"""Recipes against the real upstream sources, whose setup.py files are read and never executed.

Uses the user's own cache and, when that is empty, the configured package index: the only file here that may need the
network.
"""

from __future__ import annotations

import ast
import email
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from archwright.components import Component, components
from archwright.errors import ArchwrightError
from archwright.sources import fetch
from archwright.targets import target_table

BUILT = ("deep_ep", "deep_gemm", "engine", "flash_mla")


def tree_of(name: str) -> Path:
    """The verified, patched source tree."""
    try:
        return fetch(components()[name]).path
    except ArchwrightError as error:
        if error.code != "AW206":
            raise
        pytest.skip(f"{name} is not in the cache, and there is no index: {error.found}")


class Setup:
    """The constants of a setup.py, evaluated from its syntax tree: names, lists, f-strings and comprehensions only."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.names: dict[str, Any] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    self.names[node.targets[0].id] = self.value(node.value, self.names)
                except (LookupError, TypeError):
                    continue  # not a constant

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return names[node.id]
            case ast.List() | ast.Tuple():
                parts = [
                    self.value(e.value, names) if isinstance(e, ast.Starred) else [self.value(e, names)]
                    for e in node.elts
                ]
                return list(itertools.chain.from_iterable(parts))
            case ast.JoinedStr():
                return "".join(
                    str(self.value(part.value if isinstance(part, ast.FormattedValue) else part, names))
                    for part in node.values
                )
            case ast.ListComp():
                return [self.value(node.elt, bound) for bound in self.bindings(node.generators, names)]
        raise TypeError(f"{type(node).__name__} is not a constant")

    def bindings(self, generators: list[ast.comprehension], names: dict[str, Any]) -> list[dict[str, Any]]:
        if not generators:
            return [names]
        first, *rest = generators
        found = []
        for item in self.value(first.iter, names):
            pairs = (
                {first.target.id: item}
                if isinstance(first.target, ast.Name)
                else dict(zip((e.id for e in first.target.elts), item, strict=True))  # type: ignore[attr-defined]
            )
            found += self.bindings(rest, names | pairs)
        return found

    def extension(self, *kinds: str) -> dict[str, ast.expr]:
        """The keywords of the extension that one of `kinds` makes: the CUDA extension without any."""
        (call,) = (
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in (kinds or ("CUDAExtension",))
        )
        return {str(keyword.arg): keyword.value for keyword in call.keywords}


@pytest.fixture
def setup(name: str) -> Setup:
    return Setup(tree_of(name) / "setup.py")


@pytest.fixture
def tree(name: str) -> Path:
    return tree_of(name)


@pytest.fixture
def component(name: str) -> Component:
    return components()[name]


every = pytest.mark.parametrize("name", sorted(components()))
built = pytest.mark.parametrize("name", BUILT)


@built
def test_the_units_are_upstreams_own_source_list(component: Component, setup: Setup) -> None:
    listed = setup.value(setup.extension()["sources"], setup.names)

    assert sorted(unit.path for unit in component.units) == sorted(listed)
    assert len(listed) == {"deep_ep": 3, "deep_gemm": 1, "engine": 13, "flash_mla": 35}[component.name]


@pytest.mark.parametrize("name", ["engine", "flash_mla"])
def test_for_ascend_they_are_those_of_upstreams_ascend_build(component: Component, setup: Setup) -> None:
    extension = setup.extension("NpuExtension", "CppExtension")
    listed = setup.value(extension["sources"], setup.names)
    edition = component.of(target_table().targets["ascend950"])

    assert sorted(unit.path for unit in edition.units) == sorted(listed)
    assert edition.extension == setup.value(extension["name"], setup.names)


@pytest.mark.parametrize("name", ["engine"])
def test_ascends_torch_npu_is_the_one_that_upstream_pins(component: Component, tree: Path) -> None:
    pinned = re.findall(r"(?m)^torch-npu==(\S+)$", (tree / "requirements-ascend.txt").read_text())
    editions = [components()[name].of(target_table().targets["ascend950"]) for name in ("engine", "flash_mla")]

    assert [edition.torch_npu for edition in editions] == pinned * 2


@built
def test_the_extension_has_upstreams_name(component: Component, setup: Setup) -> None:
    assert component.extension == setup.value(setup.extension()["name"], setup.names)


@pytest.mark.parametrize("name", ["flash_mla"])
def test_a2_the_gencodes_are_upstreams(setup: Setup) -> None:
    assert [g.name for g in target_table().targets["sm100"].gencodes] == setup.names["CUDA_ARCHS"]


@built
def test_a6_upstream_wants_the_standard_that_cmake_sets(tree: Path, root: Path) -> None:
    standards = set(re.findall(r"-std=c\+\+(\d+)", (tree / "setup.py").read_text()))
    ours = set(re.findall(r"C(?:XX|UDA)_STANDARD (\d+)", (root / "cmake" / "Archwright.cmake").read_text()))
    assert standards == ours == {"20"}


@pytest.mark.parametrize("name", ["engine"])
def test_the_engine_requires_what_upstream_requires(component: Component, tree: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in (tree / "requirements.txt").read_text().splitlines()]
    assert list(component.requires) == [line for line in lines if line]


@pytest.mark.parametrize("name", ["flash_mla"])
def test_ascends_device_files_have_upstreams_options(component: Component, setup: Setup, root: Path) -> None:
    """Those that our CMake names; the standard, the chip, folders and definitions come from elsewhere in it."""
    listed = setup.extension("NpuExtension", "CppExtension")["extra_compile_args"]
    assert isinstance(listed, ast.Dict) and isinstance(listed.values[0], ast.List)
    words = [node.value for node in listed.values[0].elts if isinstance(node, ast.Constant)]
    theirs = [word for word in words if not word.startswith(("-std=", "-D", "-isystem"))]

    text = (component.folder / "CMakeLists.txt").read_text()
    (ours,) = re.findall(r"ASC_OPTIONS\n(.*?)\n\s*PRECOMPILE", text, re.S)
    options = re.sub(r"(?m)^\s*#.*$", "", ours).replace("SHELL:", "").replace('"', "").split()

    assert options == theirs


@every
def test_name_version_and_licence_are_upstreams(component: Component, tree: Path) -> None:
    metadata = email.message_from_string((tree / "PKG-INFO").read_text())
    assert metadata["Name"].replace("_", "-").lower() == component.origin
    assert metadata["Version"] == component.version
    if metadata["License-Expression"]:
        assert metadata["License-Expression"] == component.license
    assert set(metadata.get_all("License-File", [])) <= set(component.license_files)


@every
def test_no_requirement_of_upstream_is_lost(component: Component, tree: Path) -> None:
    if component.pack:
        assert not component.requires, "kernels alone: the library that they are for brings what it needs"
        return
    metadata = email.message_from_string((tree / "PKG-INFO").read_text())
    wanted = {Requirement(text) for text in metadata.get_all("Requires-Dist", [])}
    ours = {canonicalize_name(Requirement(text).name) for text in component.requires} | (
        {"torch"} if component.torch else set()
    )
    assert {canonicalize_name(r.name) for r in wanted if "extra" not in str(r.marker)} <= ours


@pytest.mark.parametrize("name", ["deep_gemm", "flash_mla"])
def test_bundled_versions_are_what_the_headers_say(component: Component, tree: Path) -> None:
    (header,) = [tree / name for name in component.expect if name.endswith("cutlass/version.h")]
    parts = re.findall(r"#define CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text())
    assert {b["version"] for b in component.bundles if b["name"] == "CUTLASS"} == {".".join(parts)}


@built
def test_b2_the_guard_runs_before_torch_and_the_extension_are_imported(component: Component, tree: Path) -> None:
    module = ast.parse((tree / component.package / "__init__.py").read_text())
    guarded = next(i for i, node in enumerate(module.body) if "_archwright.check" in ast.unparse(node))
    before = "\n".join(
        ast.unparse(node) for node in module.body[:guarded] if isinstance(node, ast.Import | ast.ImportFrom)
    )
    imported = set(re.findall(r"^(?:import|from) (\S+)", before, re.M))
    assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, component.package, ""}
    assert not {f"{component.extension}", "._C", "torch"} & imported
    assert "_archwright" in before


@built
def test_every_patch_says_why_and_for_which_version(component: Component) -> None:
    patches = list((component.folder / "patches").glob("*.patch"))
    assert patches
    for patch in patches:
        head = patch.read_text().partition("--- ")[0]
        assert "Reason: " in head
        assert f"Applies to: {component.distribution} {component.version}" in head
        assert len(patch.read_text().splitlines()) < 60, "nothing of upstream is committed beyond a few lines"


@every
def test_the_licence_files_are_there(component: Component, tree: Path) -> None:
    for file in component.license_files:
        assert (tree / file).read_text().strip()
