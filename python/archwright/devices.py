"""The devices of `devices.toml`: those that can be simulated, and NPUs that kernels are lowered for."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import fail
from .tables import load_table

__all__ = ["Device", "devices", "find_device"]


@dataclass(frozen=True)
class Device:
    """One device. `figures` are in bytes, kHz, bits or plain counts; `assumed` names its own without a source.

    `capability` of an NPU is its architecture, such as dav-3510; it cannot be simulated.
    """

    name: str
    title: str
    capability: str
    figures: dict[str, int]
    assumed: tuple[str, ...]

    @property
    def is_npu(self) -> bool:
        return not self.capability[0].isdigit()

    def as_text(self) -> str:
        """The figures as csrc/simdevice reads them."""
        major, _, minor = self.capability.partition(".")
        all_figures = {"capability_major": int(major), "capability_minor": int(minor), **self.figures}
        return ",".join(f"{name}={value}" for name, value in all_figures.items())


@functools.cache
def devices() -> dict[str, Device]:
    """Every device by name. Raises AW108 for a table that is not valid, or a source that it does not list."""
    path = Path(__file__).with_name("devices.toml")
    data = load_table(path, "devices")
    shared: dict[str, dict[str, Any]] = data["capabilities"]
    sources = [table["source"] for table in shared.values()]
    result = {}
    for name, entry in data["devices"].items():
        own = {key: figure for key, figure in entry.items() if isinstance(figure, dict)}
        sources += [figure["source"] for figure in own.values()]
        cuda = entry["capability"][0].isdigit()
        tables = (
            [shared["common"], shared["queried"], shared["rest"], shared.get(entry["capability"], {})] if cuda else []
        )
        common = {key: value for table in tables for key, value in table.items() if key != "source"}
        result[name] = Device(
            name=name,
            title=entry["title"],
            capability=entry["capability"],
            figures=common | {key: figure["value"] for key, figure in own.items()},
            assumed=tuple(key for key, figure in own.items() if figure["source"] == "assumed"),
        )
    if unknown := sorted(set(sources) - data["sources"].keys()):
        raise fail(
            "AW108",
            found=f"{path}: source {', '.join(unknown)}",
            needed=f"one of {', '.join(data['sources'])}",
            why="every figure of a device has a source that can be looked up",
            fix="list the source under [sources]",
        )
    return result


def find_device(name: str) -> Device:
    """The device called `name`. Raises AW701 for an unknown one."""
    known = devices()
    if name.lower() not in known:
        raise fail(
            "AW701",
            found=f"device '{name}'",
            needed=f"one of {', '.join(known)}",
            why="the simulated device only knows devices with written-down figures",
            fix="name one of them, or add it to devices.toml with the source of each figure",
        )
    return known[name.lower()]
