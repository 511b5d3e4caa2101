"""Compares `archwright inspect` with unzip plus cuobjdump on the same wheel (the budget in the design: 3 times).

    ./bootstrap python benchmarks/inspect_wheel.py dist/sm100/deepinfer_flashmla-*.whl --json inspect-times.json

cuobjdump has to be called twice (`-lelf`, `-res-usage`): given both options it prints only the first. Both sides start
new processes and read from a warm page cache. Timings never make it fail; a side that fails does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from archwright.environment import require_environment
from archwright.targets import target_table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="a wheel with device code")
    parser.add_argument("--runs", type=int, default=15, help="runs of each side, in turns")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    arguments = parser.parse_args()

    tools = require_environment(target_table().targets["sm100"]).toolkit / "bin"
    module = next(name for name in zipfile.ZipFile(arguments.wheel).namelist() if name.endswith(".so"))
    archwright = [Path(sys.executable).with_name("archwright"), "inspect", arguments.wheel]
    times: dict[str, list[float]] = {"archwright": [], "archwright --json": [], "unzip + cuobjdump": []}
    _seconds([archwright])  # writes the bytecode that an installed tool has
    for _ in range(arguments.runs):
        times["archwright"].append(_seconds([archwright]))
        times["archwright --json"].append(_seconds([[*archwright, "--json"]]))
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / module
            times["unzip + cuobjdump"].append(
                _seconds(
                    [
                        ["unzip", "-q", arguments.wheel, "-d", folder],
                        [tools / "cuobjdump", "-lelf", library],
                        [tools / "cuobjdump", "-res-usage", library],
                    ]
                )
            )
    medians = {side: statistics.median(values) for side, values in times.items()}
    ratios = {side: medians[side] / medians["unzip + cuobjdump"] for side in ("archwright", "archwright --json")}
    for side, value in medians.items():
        ratio = f"  ratio {ratios[side]:.2f} (budget 3)" if side in ratios else ""
        print(f"{side:<20} {value * 1000:7.1f} ms, median of {arguments.runs}{ratio}")
    if arguments.json:
        facts = {"wheel": arguments.wheel.name, "bytes": arguments.wheel.stat().st_size, "cores": os.cpu_count()}
        arguments.json.write_text(json.dumps({**facts, "seconds": times, "ratios": ratios}, indent=1) + "\n")
    return 0


def _seconds(commands: list[list[str | Path]]) -> float:
    """Wall time of the commands, one after another; a gate that fails (status 1) counts as done."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.monotonic()
    for command in commands:
        status = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env).returncode
        if status not in (0, 1):
            raise SystemExit(f"{command[0]} ended with status {status}")
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
