"""The commands `simulate` and `aot`: they parse, call the library and render, like the others (cli.py)."""

from __future__ import annotations

import os
import tempfile
from json import dumps as json_text
from pathlib import Path

import click

from .errors import fail
from .indexes import Installer
from .options import (
    PATH,
    experimental_option,
    installer_option,
    jobs_option,
    json_option,
    memory_option,
    names_argument,
    news,
    no_wait_option,
    offline_option,
    out_option,
    package_source,
    plan_option,
    python_option,
    target_argument,
    verbose_option,
)
from .project import wheels_folder
from .ui import err

__all__ = ["aot", "simulate"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--device", required=True, metavar="NAME", help="b200, h100, ...: see devices.toml.")
@click.option("--devices", type=click.IntRange(1, 64), default=1, metavar="N", help="How many of them. Default: 1.")
@click.option("--target", metavar="TARGET", help="Whose environment to use. Default: the device's target.")
@click.option("--log", type=PATH, metavar="DIR", help="Keep the records of loads and launches here.")
@click.option("--summary", is_flag=True, help="Say at the end how much was loaded and launched.")
@json_option
@verbose_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def simulate(
    device: str,
    devices: int,
    target: str | None,
    log: Path | None,
    summary: bool,
    command: tuple[str, ...],
    json: bool,
    verbose: bool,
) -> int:
    """Run COMMAND under a simulated device: it loads and launches kernels, and nothing is computed.

    The exit status is COMMAND's. `--json` and `--summary` say at the end, on standard error, what was recorded.
    """
    from .devices import find_device
    from .environment import require_environment
    from .simulate import run_simulated
    from .targets import target_table

    chosen = find_device(device)
    owner = next((t.name for t in target_table().targets.values() if chosen.capability in t.devices), device)
    environment = require_environment(target_table().find(target or owner))
    with tempfile.TemporaryDirectory() as scratch:
        result = run_simulated(chosen.name, environment, command, log or Path(scratch), devices)
    if json:
        click.echo(json_text(result.as_dict()), err=True)
    elif summary:
        counts = f"{result.loads} loads, {result.launches} launches, {len(result.kernels)} kernels"
        err().print(f"{chosen.title} (simulated): {counts}; {result.not_verified}", markup=False)
    return result.status if result.status >= 0 else 128 - result.status


@click.command()
@target_argument
@names_argument
@click.option("--shapes", metavar="FILE", help="Shape file, or the name of a shipped one.")
@click.option("--device", metavar="NAME", help="Device that is simulated. Default: the pack's for TARGET.")
@click.option("--lower-only", is_flag=True, help="For Ascend: make the source pack and compile nothing; needs no CANN.")
@out_option
@jobs_option
@memory_option
@experimental_option
@plan_option
@no_wait_option
@installer_option
@python_option
@offline_option
@json_option
@verbose_option
def aot(
    target: str,
    names: tuple[str, ...],
    shapes: str | None,
    device: str | None,
    lower_only: bool,
    out: Path | None,
    jobs: int | None,
    memory: int | None,
    experimental: bool,
    plan_only: bool,
    no_wait: bool,
    installer: Installer,
    python: str | None,
    offline: bool,
    json: bool,
    verbose: bool,
) -> None:
    """Compile kernels ahead of time for TARGET, without a GPU, into AOT pack wheels. Resumes like `build`."""
    from . import render
    from .ascend import require_cann
    from .build import BuildOptions, build_wheels
    from .cann import find_cann
    from .components import select_cells
    from .environment import create_environment
    from .lowering import compile_pack
    from .packs import DEFAULT_SHAPES, library_missing, pack_device
    from .plan import make_plan
    from .shapes import load_shapes
    from .targets import target_table

    chosen_target = target_table().find(target)
    chosen = select_cells(chosen_target, names, os.uname().machine, experimental=experimental, packs=True)
    for component in chosen:
        pack_device(component, chosen_target, device)
    cann = None
    if lower_only and not chosen_target.is_ascend:
        raise fail(
            "AW109",
            found=f"--lower-only for {chosen_target.name}",
            needed="an Ascend target",
            why="kernels for CUDA devices are compiled here: their compiler is in the environment",
            fix="leave it out",
        )
    if chosen_target.is_ascend and lower_only:
        find_cann()  # the freeze record names it: a stale variable is an error now, and not after minutes
    elif chosen_target.is_ascend:
        cann = require_cann(chosen_target)
    if shapes and Path(shapes).is_file():
        shapes = str(Path(shapes).absolute())  # the builds run elsewhere
    load_shapes(shapes or DEFAULT_SHAPES)  # before anything slow
    gencodes = chosen_target.gencodes
    plan = make_plan(chosen_target, chosen, gencodes, jobs=jobs, memory_mib=memory)
    if not render.announce(plan, plan_only=plan_only, json=json):
        return
    source = package_source(chosen_target, installer, offline, None, news)
    environment = create_environment(chosen_target, python=python, source=source, report=news)
    options = BuildOptions(offline=source.offline, wait=not no_wait, device=device, shapes=shapes)
    # kernels are lowered from the library's sources: a wheel of it would need CANN
    libraries = () if chosen_target.is_ascend else library_missing(chosen, chosen_target, environment)
    if libraries:
        missing = ", ".join(library.name for library in libraries)
        news(f"first the libraries that are not in dist/{chosen_target.name} as their recipes are now: {missing}")
        before = make_plan(chosen_target, libraries, gencodes, jobs=jobs, memory_mib=memory)
        home = wheels_folder(chosen_target.name)
        with render.progress(before, quiet=json) as observer:
            build_wheels(chosen_target, libraries, gencodes, environment, before, home, options, observer)
    folder = (out or wheels_folder(chosen_target.name)).absolute()
    with render.progress(plan, quiet=json) as observer:
        result = build_wheels(chosen_target, chosen, gencodes, environment, plan, folder, options, observer)
    render.show_built(plan, result, json=json)
    if cann is not None:
        for wheel in result.wheels:
            if status := compile_pack(wheel.path, environment, cann):
                raise fail(
                    "AW501",
                    found=f"compiling the kernels of {wheel.path.name} with {cann.bisheng} ended with status {status}",
                    needed="every kernel to compile",
                    why="the compiler's messages are above; those that compiled are in TileLang's cache",
                    fix="send the output and the wheel back to Archwright: docs/ascend.md",
                )
