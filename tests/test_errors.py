"""Every error has a code, an exit status, four parts and a page; nothing else can reach a user."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from archwright.errors import CATALOGUE, ArchwrightError, Exit, fail

PARTS = {"found": "f", "needed": "n", "why": "w", "fix": "x"}


def tool_sources(root: Path) -> list[Path]:
    return [p for p in (root / "python" / "archwright").glob("*.py") if p.name != "errors.py"]


def raised_codes(path: Path) -> set[str]:
    """First arguments of `fail(...)` in the file, read without running it."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "fail"
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def test_exit_statuses_are_those_that_are_promised() -> None:
    assert {kind.name: int(kind) for kind in Exit} == {
        "DONE": 0,
        "CHECK_FAILED": 1,
        "USAGE": 2,
        "REFUSED": 3,
        "UNFIT": 4,
        "BUILD_FAILED": 5,
        "INTERRUPTED": 130,
    }


def test_an_error_has_four_parts_in_words_and_as_data() -> None:
    error = fail("AW201", **PARTS, detail="more\nlines\n")

    assert str(error).splitlines() == [
        "AW201: hash mismatch",
        *("  found:  f", "  needed: n", "  why:    w", "  fix:    x"),
        *("", "more", "lines"),
    ]
    assert json.loads(json.dumps(error.as_dict())) == {
        **PARTS,
        "code": "AW201",
        "detail": "more\nlines\n",
        "title": "hash mismatch",
        "exit": 1,
    }


def test_a_code_that_is_not_in_the_catalogue_cannot_be_raised() -> None:
    with pytest.raises(KeyError):
        fail("AW999", **PARTS)


def test_an_error_is_an_exception_with_its_words_in_the_traceback() -> None:
    with pytest.raises(ArchwrightError, match="AW308: no space left"):
        raise fail("AW308", **PARTS)


def test_every_code_has_its_page_and_every_page_a_code(root: Path) -> None:
    pages = {page.stem: page.read_text() for page in (root / "docs" / "errors").glob("AW*.md")}

    assert set(pages) == set(CATALOGUE)
    assert [code for code, text in pages.items() if code not in text or CATALOGUE[code].title not in text] == []


def test_every_code_that_is_raised_is_in_the_catalogue(root: Path) -> None:
    raised = set().union(*map(raised_codes, tool_sources(root)))

    assert len(raised) > 30
    assert raised <= set(CATALOGUE)


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_of_the_catalogue_is_used(code: str, root: Path) -> None:
    inside_wheels = [root / "csrc" / "guard" / "_archwright.py", root / "csrc" / "aot" / "activation.py"]
    places = inside_wheels if code.startswith("AW6") else tool_sources(root)

    assert any(f'"{code}"' in path.read_text() for path in places)


def test_titles_in_the_guard_are_the_catalogues(root: Path) -> None:
    names = ("guard/_archwright.py", "aot/activation.py")
    guard = "".join((root / "csrc" / name).read_text() for name in names)
    found = dict(re.findall(r'"(AW6\d\d)",\s+"([^"]+)"', guard))

    assert found == {code: kind.title for code, kind in CATALOGUE.items() if code.startswith("AW6")}


def test_codes_that_bootstrap_names_are_in_the_catalogue(root: Path) -> None:
    found = dict(re.findall(r"^(AW\d+): (.+)$", (root / "bootstrap").read_text(), re.M))
    assert found
    assert found == {code: CATALOGUE[code].title for code in found}
