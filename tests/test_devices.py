"""The table of devices that can be simulated, and shape files."""

from __future__ import annotations

from pathlib import Path

import pytest

from archwright.devices import devices, find_device
from archwright.errors import ArchwrightError
from archwright.shapes import load_shapes, shipped_shapes
from archwright.targets import target_table


@pytest.mark.parametrize("name", ["b200", "gb200", "b300", "h100", "h200", "h800"])
def test_every_device_of_the_targets_has_figures(name: str) -> None:
    device = find_device(name)

    assert any(device.capability in target.devices for target in target_table().targets.values())
    assert all(value > 0 for value in device.figures.values()), "programs divide by them"
    assert f"sms={device.figures['sms']}" in device.as_text().split(",")


def test_figures_without_a_source_are_named() -> None:
    assert "sms" not in devices()["b200"].assumed
    assert "sms" in devices()["b300"].assumed


def test_an_unknown_device_names_the_known_ones() -> None:
    with pytest.raises(ArchwrightError) as caught:
        find_device("rtx5090")
    assert caught.value.code == "AW701"
    assert "b200" in caught.value.needed


def test_the_shipped_shapes_say_what_they_assume() -> None:
    (name,) = shipped_shapes()
    shapes = load_shapes(name)

    assert {1, 6, 8, 48, 128, 768} <= set(shapes.tokens["decode"]), "graphs of the draft and of the target model"
    assert shapes.tokens["prefill"] == (1024, 2048, 4096, 8192)
    assert "n_routed_experts" in shapes.assumed
    assert "hidden_size" not in shapes.assumed
    assert shapes.as_dict()["dimensions"]["hidden_size"] == 4096


def write(path: Path, text: str) -> str:
    path.write_text(f'schema = 1\nmodel = "m"\n{text}')
    return str(path)


def test_a_shape_file_of_the_users_own(tmp_path: Path) -> None:
    file = write(
        tmp_path / "m.toml",
        "[dimensions]\nhidden_size = { value = 8, source = 'config.json' }\n"
        "[tokens]\na = [4, 2, 2]\nb = { from = 64, to = 192, step = 64 }\n",
    )
    assert load_shapes(file).tokens == {"a": (2, 4), "b": (64, 128, 192)}


@pytest.mark.parametrize(
    "text",
    [
        "[dimensions]\nhidden_size = { value = 8 }\n[tokens]\na = [1]\n",
        "[dimensions]\nhidden_size = { value = 0, source = 'x' }\n[tokens]\na = [1]\n",
        "[dimensions]\n[tokens]\na = [0]\n",
        "[dimensions]\n[tokens]\na = { from = 1, to = 2, step = 'half' }\n",
        "[dimensions]\n[tokens]\n",
    ],
)
def test_a_wrong_shape_file_is_refused(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "m.toml", text)
    with pytest.raises(ArchwrightError) as caught:
        load_shapes(file)
    assert caught.value.code == "AW706"


def test_a_shape_file_that_is_not_there_names_the_shipped_ones() -> None:
    with pytest.raises(ArchwrightError) as caught:
        load_shapes("llama")
    assert caught.value.code == "AW706"
    assert shipped_shapes()[0] in caught.value.needed
