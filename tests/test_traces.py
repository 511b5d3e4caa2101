"""Traces of the build machine (case H2): found in every kind of file, and not where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from archwright import traces
from archwright.traces import find_traces, machine_words

ELF = b"\x7fELF\0\0\0\0"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine called build-box-7 whose user is mallory."""
    monkeypatch.setattr(traces.os, "uname", lambda: SimpleNamespace(nodename="build-box-7.example"))
    monkeypatch.setattr(traces, "_user", lambda: "mallory")
    machine_words.cache_clear()
    yield
    machine_words.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "/root/.cache/archwright/sources/a.cu",
        "/home/alice/a.cu",
        "/tmp/tmpxft_00001234/a.ii",
        "/var/tmp/x",
        "/workspace/flash_mla/a.cu",
        "/Users/bob/a.h",
        "see build-box-7.example",
        "by mallory",
        "mallory@build-box-7",
    ],
)
def test_traces_in_a_binary_are_found(text: str) -> None:
    (problem,) = find_traces({"a.so": ELF + b"\0" + text.encode() + b"\0"})[:1]
    assert problem.startswith("a.so: ")


@pytest.mark.parametrize(
    "text",
    [
        "/src/flash_mla/csrc/a.cu",
        "/build/flash_mla/pch.hpp",
        "/env/torch/include/a.h",
        "$HOME/root/x",
        "a/home/x.cpp",
        "/usr/include/stdio.h",
        "amallory",
        "mallory2",
        "/rooted/x",
    ],
)
def test_what_only_looks_like_one_is_not(text: str) -> None:
    assert find_traces({"a.so": ELF + b"\0" + text.encode() + b"\0"}) == []


def test_texts_may_name_examples_and_not_this_machine(tmp_path: Path) -> None:
    assert find_traces({"README": b"run it in /home/user/project or /tmp/x"}) == []
    here = str(traces.project_root()).encode()
    assert find_traces({"a.json": b'{"path": "' + here + b'/csrc"}'}) != []


def test_allowed_patterns_are_left_out() -> None:
    members = {"a.so": ELF + b"\0/tmp/deep_jit.lock\0/tmp/other\0"}
    assert find_traces(members, ("/tmp/deep_jit*",)) == ["a.so: /tmp/other"]


def test_a_file_with_many_traces_reports_three() -> None:
    data = ELF + b"".join(b"\0/root/%d\0" % number for number in range(100))
    assert len(find_traces({"a.so": data})) == 3


def test_short_and_common_names_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces.os, "uname", lambda: SimpleNamespace(nodename="box"))
    monkeypatch.setattr(traces, "_user", lambda: "builder")
    machine_words.cache_clear()
    assert not {b"box", b"builder"} & set(machine_words())
