"""Promises about the tree itself: sizes, locks, and what must never be written down."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: Put together here, so that this file does not contain them either.
HOSTS = [
    ".".join(parts)
    for parts in (
        *(("pypi", "org"), ("pypi", "python", "org"), ("files", "pythonhosted", "org"), ("pypi", "nvidia", "com")),
        *(
            ("download", "pytorch", "org"),
            ("conda", "anaconda", "org"),
            ("repo", "anaconda", "com"),
            ("conda-forge", "org"),
        ),
        *(
            ("deb", "debian", "org"),
            ("security", "debian", "org"),
            ("archive", "ubuntu", "com"),
            ("registry", "npmjs", "org"),
        ),
        *(("index", "crates", "io"), ("proxy", "golang", "org"), ("ghcr", "io"), ("docker", "io"), ("quay", "io")),
    )
]
LOCKS = (
    *("envs/dev.lock", "envs/tool.lock"),
    *(f"envs/{target}/{half}.lock" for target in ("sm100", "sm90", "ascend950") for half in ("toolchain", "runtime")),
)


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files that are in the repository, or will be when they are added."""
    root = Path(__file__).resolve().parents[1]
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        pytest.skip("not a git checkout")
    return [
        path for name in run.stdout.split("\0") if name and (path := root / name).is_file() and not path.is_symlink()
    ]


def locked(text: str) -> dict[str, str]:
    """Name to version of a lock's requirements."""
    return {canonicalize_name(m[1]): m[2] for m in re.finditer(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", text, re.M)}


def requirements(text: str) -> dict[str, Requirement]:
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]
    return {canonicalize_name(r.name): r for r in found}


def test_no_module_of_the_tool_is_longer_than_500_lines(root: Path) -> None:
    sizes = {path.name: len(path.read_text().splitlines()) for path in (root / "python" / "archwright").rglob("*.py")}
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size > 500} == {}


def registries_in(data: bytes) -> list[str]:
    return [host for host in HOSTS if host.encode() in data.lower()]


def test_no_registry_is_named_in_any_file(tracked: list[Path]) -> None:
    assert len(tracked) > 80
    assert {str(path): found for path in tracked if (found := registries_in(path.read_bytes()))} == {}


def test_the_search_for_registries_finds_them() -> None:
    assert registries_in(f"index-url = https://{HOSTS[0].upper()}/simple".encode()) == [HOSTS[0]]
    assert registries_in(b"an index that nobody knows") == []


def test_no_binary_and_no_large_file_is_committed(tracked: list[Path]) -> None:
    for path in tracked:
        data = path.read_bytes()
        assert b"\0" not in data, f"{path} is binary"
        assert len(data) < 300_000, f"{path} is large"


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_requirement_has_a_hash_and_an_exact_version(name: str, root: Path) -> None:
    text = (root / name).read_text()
    logical = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n?", "", text, flags=re.M))
    lines = [line for line in logical.splitlines() if line.strip()]

    assert len(lines) > 20
    for line in lines:
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==\S+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line


@pytest.mark.parametrize("name", LOCKS)
def test_locks_name_no_place(name: str, root: Path) -> None:
    text = (root / name).read_text()
    assert "://" not in text
    assert " @ " not in text
    assert not re.search(r"^\s*--?(index|extra-index|find-links|i )", text, re.M)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_fits_its_input(lock: str, root: Path) -> None:
    """Everything that is asked for is locked, at a version that fits."""
    source = root / lock.replace(".lock", ".in")
    text = source.read_text()
    pending = [(source, text)]
    while pending:
        path, read = pending.pop()
        for included in re.findall(r"^-r (\S+)", read, re.M):
            pending.append((path.parent / included, (path.parent / included).read_text()))
            text += "\n" + pending[-1][1]
    have = locked((root / lock).read_text())
    for name, wanted in requirements(text).items():
        assert name in have, f"{name} is in {source.name} and not in {lock}"
        assert wanted.specifier.contains(have[name], prereleases=True), f"{wanted} and {have[name]}"


def test_the_tools_input_is_what_pyproject_says(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    declared = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    listed = set(requirements((root / "envs" / "tool.in").read_text()))
    assert declared == listed


def test_what_the_tool_imports_is_declared(root: Path) -> None:
    """Third-party imports of the package, read from its syntax trees."""
    import ast
    import sys

    names = {"httpx2": "httpx2", "patch_ng": "patch-ng", "elftools": "pyelftools", "cyclonedx": "cyclonedx-python-lib"}
    names |= {
        "rattler": "py-rattler",
        "yaml": "pyyaml",
        "scikit_build_core": "scikit-build-core",
        "packageurl": "cyclonedx-python-lib",
    }
    project = tomllib.loads((root / "pyproject.toml").read_text())
    declared = {canonicalize_name(Requirement(text).name) for text in project["project"]["dependencies"]}
    declared |= {canonicalize_name(Requirement(text).name) for text in project["build-system"]["requires"]}
    optional = project["project"]["optional-dependencies"].values()
    declared |= {canonicalize_name(Requirement(text).name) for texts in optional for text in texts}
    for path in (root / "python" / "archwright").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            for module in (m.partition(".")[0] for m in modules):
                if module not in sys.stdlib_module_names and module != "archwright":
                    assert canonicalize_name(names.get(module, module)) in declared, f"{path.name} imports {module}"


def test_trap_1_the_toolchain_is_one_cuda_release(root: Path) -> None:
    have = locked((root / "envs" / "sm100" / "toolchain.lock").read_text())
    parts = [n for n in have if n.startswith("nvidia-") and have[n].startswith("13.") and n != "nvidia-cublas"]
    assert len(parts) > 6
    assert {have[name].rpartition(".")[0] for name in parts} == {"13.2"}
    assert "torch" not in have, "the two halves never share a prefix"


def test_b3_the_runtime_has_an_nccl_that_deep_ep_can_use(root: Path) -> None:
    from archwright.components import components

    have = locked((root / "envs" / "sm100" / "runtime.lock").read_text())
    floor = components()["deep_ep"].nccl
    assert floor is not None
    assert [int(p) for p in have["nvidia-nccl-cu13"].split(".")] >= [int(p) for p in floor.split(".")]
    assert have["torch"] == "2.13.0"


def test_the_runtime_holds_what_the_engine_requires(root: Path) -> None:
    from archwright.components import components

    have = locked((root / "envs" / "sm100" / "runtime.lock").read_text())
    for text in components()["engine"].requires:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if name == "tile-kernels":
            continue  # one of ours
        assert wanted.specifier.contains(have[name])


def test_the_real_builds_are_marked(root: Path) -> None:
    assert "pytest.mark.wheels" in (root / "tests" / "test_wheels.py").read_text()
