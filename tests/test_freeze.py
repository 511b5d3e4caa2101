"""The freeze record: the same until something in it changes, and its digest tells."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import freeze as module
from archwright.components import components
from archwright.environment import Environment
from archwright.errors import ArchwrightError
from archwright.freeze import (
    check_freeze,
    differences,
    digest_of,
    freeze,
    freeze_for,
    freeze_path,
    read_freeze,
    write_freeze,
)
from archwright.sources import sha256_of

from . import canntree
from .canntree import activate, make_cann

no_cann = canntree.no_cann


@pytest.fixture
def made(environment: Environment, tmp_path: Path) -> Environment:
    """The made-up environment, with programs that can be hashed."""
    gxx = tmp_path / "g++"
    gxx.write_text("#!/bin/sh\n")
    (environment.toolchain / "bin" / "python").write_text("python")
    return replace(environment, cxx=gxx)


def test_it_names_everything_that_a_result_depends_on(made: Environment) -> None:
    record = freeze(made, "deepseek-v4@abc")

    assert record["model"] == "deepseek-v4@abc"
    assert record["engine"]["version"] == components()["engine"].version
    assert record["components"]["flash_mla"]["sha256"] == components()["flash_mla"].sha256
    assert record["cuda"] == {"nvcc": "13.2.86", "release": "cu132"}
    assert record["compiler"]["gcc"] == "14.2.0"
    assert record["libc"] == " ".join(platform.libc_ver())
    assert record["torch"]["version"] == "2.13.0"
    assert all(len(digest) == 64 for digest in record["torch"]["files"] + record["nccl"]["files"])
    assert record["nccl"]["version"] == "2.32.3"
    assert record["locks"] == made.locks
    assert record["digest"] == digest_of(record)
    assert "driver" in record
    assert platform.node() not in json.dumps(record)


def test_the_same_again_is_the_same_digest_and_a_change_is_another(made: Environment) -> None:
    first = freeze(made)

    assert freeze(made) == first
    assert freeze(made, "model")["digest"] != first["digest"]
    assert freeze(replace(made, gcc="15.1.0"))["digest"] != first["digest"]
    made.cxx.write_text("#!/bin/sh\n# another\n")
    assert freeze(made)["digest"] != first["digest"]


def test_the_conda_flavour_has_a_third_lock(made: Environment) -> None:
    record = freeze(replace(made, locks={**made.locks, "conda": "c" * 64}))

    assert record["locks"]["conda"] == "c" * 64
    assert record["torch"] == freeze(made)["torch"]


def test_a_record_that_was_edited_is_aw319(made: Environment, tmp_path: Path) -> None:
    path = write_freeze(freeze(made), tmp_path / "deep" / "freeze.json")
    assert read_freeze(path) == freeze(made)

    path.write_text(path.read_text().replace("13.2.86", "13.3.86"))

    with pytest.raises(ArchwrightError) as caught:
        read_freeze(path)
    assert caught.value.code == "AW319"
    assert "digest" in caught.value.found


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"'])
def test_a_damaged_record_is_aw319(text: str, tmp_path: Path) -> None:
    path = tmp_path / "freeze.json"
    path.write_text(text)
    with pytest.raises(ArchwrightError) as caught:
        read_freeze(path)
    assert caught.value.code == "AW319"


def test_what_is_no_longer_as_frozen_is_named(made: Environment, tmp_path: Path) -> None:
    path = write_freeze(freeze(made, "model"), tmp_path / "freeze.json")
    assert check_freeze(path, made)["model"] == "model"

    with pytest.raises(ArchwrightError) as caught:
        check_freeze(path, replace(made, gcc="15.1.0", nccl="2.33.0"))

    assert caught.value.code == "AW314"
    assert "compiler.gcc: frozen 14.2.0, now 15.1.0" in caught.value.detail
    assert "nccl.version: frozen 2.32.3, now 2.33.0" in caught.value.detail


def test_a_driver_that_appears_is_a_difference(made: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_driver", lambda vendor: None)
    before = freeze(made)
    monkeypatch.setattr(module, "_driver", lambda vendor: "580.95.05")

    assert differences(before, freeze(made)) == ("driver: frozen none, now 580.95.05",)


def test_evidence_refers_to_a_record_that_is_kept_and_takes_the_frozen_model(made: Environment, tmp_path: Path) -> None:
    wheels, said = tmp_path / "dist", []
    write_freeze(freeze(made, "the model"), wheels / "freeze.json")

    record = freeze_for(made, wheels, said.append)

    assert record["model"] == "the model"
    assert record["digest"][:12] in freeze_path(wheels, record).name
    assert read_freeze(write_freeze(record, freeze_path(wheels, record))) == record
    assert said == []


def test_a_build_that_is_not_as_frozen_says_so(made: Environment, tmp_path: Path) -> None:
    said: list[str] = []
    write_freeze(freeze(made), tmp_path / "freeze.json")

    freeze_for(replace(made, gcc="15.1.0"), tmp_path, said.append)

    assert "compiler.gcc: frozen 14.2.0, now 15.1.0" in said[0]


def test_g2_the_active_cann_is_frozen(no_cann: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cann(no_cann / "cann", "9.1.0")
    root = make_cann(tmp_path / "cann", "9.2.0-beta.2", "aarch64")
    activate(root, monkeypatch)

    found = module._cann()

    assert found is not None
    assert (found["version"], found["processor"]) == ("9.2.0-beta.2", "aarch64")
    assert found["sha256"] == sha256_of(root / "aarch64-linux" / "ascend_toolkit_install.info")


def test_a_cann_that_is_named_and_not_there_is_not_frozen_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "gone"))
    with pytest.raises(ArchwrightError, match="AW334"):
        module._cann()


def test_without_a_cann_there_is_none_to_freeze(no_cann: Path) -> None:
    assert module._cann() is None
