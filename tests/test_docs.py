"""The documentation: links lead somewhere, and what it tells to type exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from archwright.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(text: str) -> Iterator[list[str]]:
    """What pages tell to type: `archwright ...` in code, up to what a shell would not pass on."""
    code = re.findall(r"`([^`\n]+)`", text) + [
        line for block in re.findall(r"```[^\n]*\n(.*?)```", text, re.S) for line in block.splitlines()
    ]
    for line in code:
        match = re.match(r"\s*(?:\./bootstrap )?archwright ([a-z-][^#|>]*)", line)
        if match and "..." not in match[1]:
            try:
                yield shlex.split(match[1])
            except ValueError:
                continue  # a sentence in an error's example


def problem(words: list[str]) -> str:
    """What is wrong with a command line, without running it."""
    command: click.Command = app
    rest = list(words)
    while isinstance(command, click.Group):
        if not rest or rest[0].startswith("-"):
            return "" if rest[:1] in ([], ["--version"], ["--help"]) else f"no option {rest[0]}"
        found = command.commands.get(rest[0])
        if found is None:
            return f"no command {rest[0]}"
        command, rest = found, rest[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    rest = rest[: rest.index("--")] if "--" in rest else rest  # what follows is another program's
    unknown = [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
    return f"no option {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    wrong = {shlex.join(words): why for words in commands(page.read_text()) if (why := problem(words))}
    assert wrong == {}


def test_commands_are_found_and_judged() -> None:
    found = list(
        commands("`archwright env create sm100`\n```\n./bootstrap archwright build sm100 --bogus  # no\n```\n")
    )
    assert found == [["env", "create", "sm100"], ["build", "sm100", "--bogus"]]
    assert [problem(words) for words in found] == ["", "no option --bogus"]
    assert problem(["env", "nothing"]) == "no command nothing"
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 60


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and page.name not in index
    ]
    assert missing == []


def test_every_command_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for name, command in app.commands.items():
        for sub in command.commands if isinstance(command, click.Group) else [""]:
            assert f"`archwright {name} {sub}".rstrip() in index


#: Answers like the tool where there is no CANN: every command fails, those for JSON with an error as JSON.
BOOTSTRAP = """\
#!/bin/sh
echo "ran: $*" >&2
case "$*" in *--json*) echo '{"error": {"code": "AW334"}}';; esac
exit 4
"""


@pytest.mark.parametrize("built", [False, True])
def test_the_report_of_a_cann_machine_is_made_whatever_fails(built: bool, tmp_path: Path) -> None:
    """The shell lines of docs/ascend.md, as they stand there."""
    page = (ROOT / "docs" / "ascend.md").read_text()
    (lines,) = [block for block in re.findall(r"```sh\n(.*?)```", page, re.S) if "ascend950-report" in block]
    (tmp_path / "bootstrap").write_text(BOOTSTRAP)
    (tmp_path / "bootstrap").chmod(0o755)
    wheels = tmp_path / "dist" / "ascend950"
    if built:
        (wheels / "evidence").mkdir(parents=True)
        (wheels / "evidence" / "a.level1.json").write_text("{}")
        for name in ("a.whl", "b.whl"):
            (wheels / name).touch()

    run = subprocess.run(["sh", "-c", lines], cwd=tmp_path, env={"PATH": os.defpath}, capture_output=True, text=True)

    assert run.returncode == 0, run.stderr
    with tarfile.open(tmp_path / "ascend950-report.tgz") as archive:
        names = {name.removeprefix("ascend950-report/") for name in archive.getnames()}
        log = archive.extractfile("ascend950-report/log.txt")
        assert log is not None
        said = log.read().decode()
    assert {"doctor.json", "freeze.json", "inspect.json", "log.txt"} < names
    assert ("evidence/a.level1.json" in names) is built
    for command in ("env create", "doctor", "env freeze", "build", "aot"):
        assert f"ran: archwright {command} ascend950" in said
    if built:
        assert "dist/ascend950/a.whl dist/ascend950/b.whl" in said
    for name in ("doctor", "freeze", "inspect"):
        assert json.loads((tmp_path / "ascend950-report" / f"{name}.json").read_text())["error"]["code"] == "AW334"
