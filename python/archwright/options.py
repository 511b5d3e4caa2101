"""Options and arguments that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .indexes import Flavour, Installer
from .ui import err

if TYPE_CHECKING:
    from .installing import PackageSource
    from .targets import Target

__all__ = [
    "PATH",
    "bundle_option",
    "experimental_option",
    "flavour_option",
    "gencode_option",
    "installer_option",
    "jobs_option",
    "json_option",
    "memory_option",
    "names_argument",
    "news",
    "no_wait_option",
    "offline_option",
    "out_option",
    "package_source",
    "plan_option",
    "python_option",
    "target_argument",
    "verbose_option",
]

PATH = click.Path(path_type=Path)
json_option = click.option("--json", is_flag=True, help="Print JSON and nothing else on standard output.")
offline_option = click.option("--offline", is_flag=True, help="Use caches only; never the network.")
python_option = click.option("--python", help="Path or version of the Python to build for.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
target_argument = click.argument("target")
names_argument = click.argument("names", metavar="[COMPONENT]...", nargs=-1)
gencode_option = click.option(
    "--gencode", multiple=True, help="Build device code for this one only (repeatable).", metavar="SM"
)
experimental_option = click.option("--experimental", is_flag=True, help="Allow experimental targets.")
installer_option = click.option(
    "--installer",
    type=click.Choice([installer.value for installer in Installer]),
    default=Installer.UV.value,
    callback=lambda context, parameter, value: Installer(value),
    show_default=True,
    help="What installs the locked packages.",
)
out_option = click.option("--out", type=PATH, help="Folder for the wheels. Default: dist/<target>.")
jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), help="Compiles at once. Default: the cores that may be used."
)
#: Given in GiB, received in MiB.
memory_option = click.option(
    "--memory",
    type=float,
    callback=lambda context, parameter, value: None if value is None else int(value * 1024),
    help="GiB to plan with. Default: 85 % of what may be used.",
)
plan_option = click.option("--plan", "plan_only", is_flag=True, help="Print the plan and stop.")
no_wait_option = click.option("--no-wait", is_flag=True, help="Fail when another build holds a cell.")
bundle_option = click.option(
    "--bundle",
    type=PATH,
    envvar="ARCHWRIGHT_BUNDLE",
    metavar="DIR",
    help="Take everything from this bundle (`archwright env export`) and nothing from the network.",
)

flavour_option = click.option(
    "--flavour",
    type=click.Choice([flavour.value for flavour in Flavour]),
    default=Flavour.PACKAGES.value,
    callback=lambda context, parameter, value: Flavour(value),
    show_default=True,
    help="Compilers and CUDA from hash-locked packages, or from the conda lock (docs/conda.md).",
)


def news(message: str) -> None:
    """Progress, for people: on standard error."""
    err().print(message, style="dim", markup=False)


def package_source(
    target: Target,
    installer: Installer,
    offline: bool,
    bundle: Path | None,
    report: Callable[[str], None],
    names: Sequence[str] = (),
) -> PackageSource:
    """Where locked packages come from, as the options say.

    A bundle is verified, must have the components `names`, and puts its sources into the cache.
    """
    from .installing import PackageSource

    if bundle is None:
        return PackageSource(installer, offline)
    from .bundle import open_bundle

    opened = open_bundle(bundle, target, names=names, report=report)
    opened.seed_cache()
    return PackageSource(installer, offline=True, wheels=opened.wheels)
