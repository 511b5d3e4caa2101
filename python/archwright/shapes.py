"""Shape files: the dimensions of a model and the token counts for which kernels are compiled ahead of time.

The shipped ones lie in `models/`, and are named without path and suffix. Every dimension says where it comes from, or
that it is assumed and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ArchwrightError, fail
from .tables import load_table

__all__ = ["Shapes", "load_shapes", "shipped_shapes"]

_FOLDER = Path(__file__).with_name("models")


@dataclass(frozen=True)
class Shapes:
    """`tokens` has the token counts of each phase, ascending; `assumed` the dimensions without a source."""

    model: str
    dimensions: dict[str, int | float]
    tokens: dict[str, tuple[int, ...]]
    assumed: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """What the process of an operation is told (csrc/aot/worker.py)."""
        return {"dimensions": self.dimensions, "tokens": {phase: list(n) for phase, n in self.tokens.items()}}


def shipped_shapes() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_shapes(name: str) -> Shapes:
    """The shape file at the path `name`, or the shipped one of that name. Raises AW706 when it cannot be used."""
    path = Path(name) if Path(name).suffix == ".toml" or "/" in name else _FOLDER / f"{name}.toml"
    if not path.is_file():
        raise fail(
            "AW706",
            found=f"no shape file '{name}'",
            needed=f"a TOML file, or one of {', '.join(shipped_shapes())}",
            why="kernels are compiled for the shapes that it names, and for no others",
            fix=f"copy {_FOLDER / shipped_shapes()[0]}.toml, and adapt it to the model's config.json",
        )
    try:
        data = load_table(path, "shapes")
    except ArchwrightError as error:
        raise fail(
            "AW706",
            found=error.found,
            needed="dimensions with value and source (or assumed), and token counts for each phase",
            why="a kernel for a wrong shape is never found at run time",
            fix="correct the file; docs/aot.md describes its form",
        ) from error
    return Shapes(
        model=data["model"],
        dimensions={key: entry["value"] for key, entry in data["dimensions"].items()},
        tokens={phase: _counts(entry) for phase, entry in data["tokens"].items()},
        assumed=tuple(key for key, entry in data["dimensions"].items() if "assumed" in entry),
    )


def _counts(entry: list[int] | dict[str, Any]) -> tuple[int, ...]:
    if isinstance(entry, list):
        return tuple(sorted(set(entry)))
    first, last, step = entry["from"], entry["to"], entry["step"]
    if step != "double":
        return tuple(range(first, last + 1, step))
    counts = [first]
    while counts[-1] * 2 <= last:
        counts.append(counts[-1] * 2)
    return tuple(counts)
