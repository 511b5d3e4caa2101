"""Which wheel an AOT pack takes as its library."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from archwright import packs
from archwright.components import components
from archwright.environment import Environment
from archwright.packs import library_missing, library_wheels
from archwright.sources import patch_digests
from archwright.targets import target_table

from .tinywheel import tiny_wheel

SM100 = target_table().targets["sm100"]
LIBRARY, PACK = components()["deep_ep"], components()["deep_ep_aot"]


def library(folder: Path, environment: Environment, patches: Mapping[str, str]) -> Path:
    """A wheel with the name of DeepEP's, which says that it was made with `patches`."""
    version = f"{LIBRARY.version}+{environment.toolkit_release}.sm100"
    wheel = tiny_wheel(folder, "deepinfer_ep", version, f"cp312-cp312-manylinux_2_34_{os.uname().machine}")
    source = {"distribution": LIBRARY.origin, "sha256": LIBRARY.sha256, "patches": dict(patches)}
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(f"deepinfer_ep-{version}.dist-info/archwright.json", json.dumps({"source": source}))
    return wheel


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packs, "wheels_folder", lambda target: tmp_path)
    return tmp_path


def test_the_library_is_a_wheel_with_the_patches_of_the_recipe(dist: Path, environment: Environment) -> None:
    wheel = library(dist, environment, patch_digests(LIBRARY))

    assert library_wheels(LIBRARY, SM100, environment) == [wheel]
    assert library_missing((PACK,), SM100, environment) == ()


def test_one_from_before_a_patch_changed_is_built_again(dist: Path, environment: Environment) -> None:
    first, *_ = patch_digests(LIBRARY).items()
    library(dist, environment, dict([first]))

    assert library_wheels(LIBRARY, SM100, environment) == []
    assert library_missing((PACK,), SM100, environment) == (LIBRARY,)


def test_one_of_another_tool_is_not_taken(dist: Path, environment: Environment) -> None:
    version = f"{LIBRARY.version}+{environment.toolkit_release}.sm100"
    tiny_wheel(dist, "deepinfer_ep", version, f"cp312-cp312-manylinux_2_34_{os.uname().machine}")

    assert library_missing((PACK,), SM100, environment) == (LIBRARY,)
