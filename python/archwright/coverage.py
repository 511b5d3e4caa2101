"""Which of the calls that DeepInfer makes have kernels for a target, and why the others have none.

Joins three things, none of which is a list kept here: the calls in DeepInfer's source (calls.py), the manifests of AOT
pack wheels (manifests.py), and what the recipes say (components.py). A manifest shows what was really compiled; a
recipe's word alone never makes a call covered.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .calls import Call, Census, Kind
from .components import Cell, CellState, Component
from .errors import fail
from .inspection import DEVICE_COMPILE
from .manifests import COMPILED, LOWERED, NO_KERNEL, Manifest, RanOperation
from .targets import Target

__all__ = ["Coverage", "Entry", "State", "cover"]

#: The kind of device that DeepInfer asks for (calls.py), by vendor.
_DEVICE = {"nvidia": "gpu", "huawei": "npu"}

_COVERED_MEANS = "covered means compiled for these shapes and inspected: no device has run a kernel here"
_LOWERED_MEANS = (
    "lowered means that there is Ascend C for these shapes, which no compiler has seen. "
    f"device_compile: {DEVICE_COMPILE}"
)


class State(StrEnum):
    COVERED = "covered"
    LOWERED = "lowered"
    PARTLY = "partly"
    NO_COMPILE = "no compile needed"
    AHEAD = "ahead of time in the library"
    SETTING = "starts no kernel"
    NO_KERNEL = "no kernel"
    NOT_REACHED = "not reached"
    NOT_IN_A_PACK = "not in a pack"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Entry:
    """One entry point: its state, how many cases were run, how many of them compiled, the kernels that they used."""

    entry: str
    library: str
    state: State
    reason: str
    cases: int
    compiled: int
    kernels: int
    operations: tuple[str, ...]
    places: tuple[Call, ...]

    def as_dict(self) -> dict[str, Any]:
        places = [f"{call.file}:{call.line}" for call in self.places]
        return vars(self) | {"state": str(self.state), "places": places}


@dataclass(frozen=True)
class Coverage:
    """What was found for `target`. `elsewhere` are entry points that only another vendor's devices reach, `mentioned`
    those that are named in annotations or handed on and never called.
    """

    target: str
    manifests: tuple[Manifest, ...]
    entries: tuple[Entry, ...]
    elsewhere: tuple[str, ...]
    mentioned: tuple[str, ...]
    unread: dict[str, str]
    not_verified: str

    def counts(self) -> dict[str, dict[str, int]]:
        """Entry points by library and state."""
        found: dict[str, Counter[str]] = {}
        for entry in self.entries:
            found.setdefault(entry.library, Counter())[str(entry.state)] += 1
        return {library: dict(states) for library, states in found.items()}

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "manifests": [manifest.as_dict() for manifest in self.manifests],
            "entries": [entry.as_dict() for entry in self.entries],
            "counts": self.counts(),
        }


def cover(
    census: Census,
    target: Target,
    manifests: Sequence[Manifest],
    recipes: Mapping[str, Component],
    *,
    kernels_of: Callable[[Component], str] = lambda component: "",
    canonical: Callable[[str], str] = lambda name: name,
) -> Coverage:
    """The state of every entry point that `census` found, for `target`.

    `kernels_of` says what the wheel of a library with kernels of its own holds ("" when there is no such wheel);
    `canonical` follows re-exports, so that two names of one function meet. Raises AW109 for a manifest of another
    target, and for two of one component.
    """
    _check_manifests(manifests, target)
    device = _DEVICE.get(target.vendor, "")
    found = census.by_entry()
    join = _Join(target, manifests, recipes, kernels_of, _Names(found, canonical))
    entries, elsewhere, mentioned = [], [], []
    for name, places in found.items():
        here = tuple(call for call in places if call.device in ("", device))
        if not here:
            elsewhere.append(name)
        elif not any(call.kind is Kind.CALL for call in here) and not join.names.is_known(name):
            mentioned.append(name)
        else:
            here = tuple(sorted(here, key=lambda call: call.kind is not Kind.CALL))
            entries.append(join.entry(name, tuple(call for call in here if call.kind is not Kind.ANNOTATION) or here))
    return Coverage(
        target.name,
        tuple(manifests),
        tuple(entries),
        tuple(elsewhere),
        tuple(mentioned),
        census.unread,
        _LOWERED_MEANS if target.is_ascend else _COVERED_MEANS,
    )


def _check_manifests(manifests: Sequence[Manifest], target: Target) -> None:
    for manifest in manifests:
        if manifest.target != target.name:
            raise fail(
                "AW109",
                found=f"{manifest.wheel.name}, a pack for {manifest.target}",
                needed=f"packs for {target.name}",
                why="kernels of another target cover nothing here",
                fix=f"`archwright coverage {manifest.target}`, or leave that pack out",
            )
    twice = [name for name, count in Counter(m.component for m in manifests).items() if count > 1]
    if twice:
        raise fail(
            "AW109",
            found=", ".join(m.wheel.name for m in manifests if m.component == twice[0]),
            needed=f"one pack of {twice[0]}",
            why="each is for one device and the shapes of one model: together they would seem to cover more",
            fix="name the packs with --pack",
        )


class _Names:
    """Finds the spelling that recipes and manifests have for an entry point that DeepInfer may spell differently."""

    def __init__(self, entries: Iterable[str], canonical: Callable[[str], str]) -> None:
        self._entries, self._canonical = frozenset(entries), canonical
        self._known: frozenset[str] = frozenset()
        self._aliases: dict[str, str] = {}

    def learn(self, known: Iterable[str]) -> None:
        """Take the spellings of recipes and manifests. Sources are only read for those that DeepInfer never uses."""
        self._known = frozenset(known)
        self._aliases = {self._canonical(name): name for name in sorted(self._known - self._entries)}
        self._packages = {name.partition(".")[0] for name in self._aliases}

    def key(self, entry: str) -> str:
        if entry in self._known or entry.partition(".")[0] not in self._packages:
            return entry
        return self._aliases.get(self._canonical(entry), entry)

    def is_known(self, entry: str) -> bool:
        return self.key(entry) in self._known


class _Join:
    """What is known of a name, from each side."""

    def __init__(
        self,
        target: Target,
        manifests: Sequence[Manifest],
        recipes: Mapping[str, Component],
        kernels_of: Callable[[Component], str],
        names: _Names,
    ) -> None:
        self._target, self._kernels_of, self.names = target, kernels_of, names
        self._components = {manifest.component for manifest in manifests}
        packs = [recipe for recipe in recipes.values() if recipe.pack]
        self._ran = _by_name((call, op) for m in manifests for op in m.operations for call in op.calls)
        self._planned = _by_name((call, r) for r in packs if r.pack for op in r.pack.operations for call in op.calls)
        self._settings = {name for recipe in packs if recipe.pack for name in recipe.pack.settings}
        self._unreached = {u.call: u.reason for recipe in packs if recipe.pack for u in recipe.pack.unreached}
        names.learn({*self._ran, *self._planned, *self._settings, *self._unreached})
        self._libraries = {recipe.package: recipe for recipe in recipes.values() if not recipe.pack}

    def entry(self, name: str, places: tuple[Call, ...]) -> Entry:
        library, key = places[0].library, self.names.key(name)
        operations = self._ran.get(key, []) if key not in self._settings else []
        outcomes: Counter[str] = Counter()
        for operation in operations:
            outcomes.update(operation.outcomes)
        kernels = frozenset[tuple[str, str]]().union(*(operation.kernels for operation in operations))
        state, reason = self._state(key, library, operations, outcomes, len(kernels))
        ran = tuple(operation.name for operation in operations)
        return Entry(name, library, state, reason, outcomes.total(), outcomes[COMPILED], len(kernels), ran, places)

    def _state(
        self, key: str, library: str, operations: Sequence[RanOperation], outcomes: Counter[str], kernels: int
    ) -> tuple[State, str]:
        if outcomes:
            return _state_of_cases(key, operations, outcomes, kernels)
        recipe = self._libraries.get(library)
        if recipe is not None and (cell := _cell(recipe, self._target)).state is CellState.REFUSED:
            return (State.NO_KERNEL if recipe.has_device_code else State.REFUSED), cell.reason
        if key in self._settings:
            return State.SETTING, ""
        if key in self._unreached:
            return State.NOT_REACHED, self._unreached[key]
        if key in self._planned:
            return self._state_of_plan(self._planned[key])
        if recipe is not None and recipe.has_device_code:
            return self._state_of_library(recipe)
        return State.NOT_IN_A_PACK, "no recipe names it"

    def _state_of_plan(self, recipes: Sequence[Component]) -> tuple[State, str]:
        """A recipe names the entry point, but no manifest here does."""
        recipe = recipes[0]
        cell = _cell(recipe, self._target)
        if cell.state is CellState.REFUSED:
            return State.REFUSED, cell.reason
        if cell.pending:
            return State.UNKNOWN, cell.pending
        if recipe.name in self._components:
            return State.UNKNOWN, f"the pack of {recipe.name} was made from another recipe: it has no case of this"
        command = f"archwright aot {self._target.name} {recipe.name}{self._target.flag}"
        return State.UNKNOWN, f"no pack of {recipe.name}: `{command}`"

    def _state_of_library(self, recipe: Component) -> tuple[State, str]:
        """The library compiles nothing at run time: its wheel has the kernels, when there is one."""
        cell = _cell(recipe, self._target)
        if cell.pending:
            return State.UNKNOWN, cell.pending
        held = self._kernels_of(recipe)
        if held:
            return State.AHEAD, held
        return State.UNKNOWN, f"no wheel of {recipe.name}: `archwright build {self._target.name} {recipe.name}`"


def _state_of_cases(
    key: str, operations: Sequence[RanOperation], outcomes: Counter[str], kernels: int
) -> tuple[State, str]:
    total, done = outcomes.total(), outcomes[COMPILED] + outcomes[LOWERED]
    words = next((_said(operation, key) for operation in operations if operation.reasons), "")
    if done == total:
        if not kernels:
            return State.NO_COMPILE, "every case ran, and upstream's run-time compiler was never asked"
        if outcomes[LOWERED]:
            return State.LOWERED, ""
        return State.COVERED, ""
    if done:
        return State.PARTLY, f"{total - done} of {total} cases: {words}"
    if outcomes[NO_KERNEL] == total:
        return State.NO_KERNEL, words
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return State.UNKNOWN, f"{others}{': ' if words else ''}{words}"


def _said(operation: RanOperation, key: str) -> str:
    """Upstream's words. An operation named otherwise calls more than `key`, and another call may have said them."""
    own = operation.name == key.rpartition(".")[2]
    return operation.reasons[0] if own else f"with {operation.name}: {operation.reasons[0]}"


def _by_name[T](pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for name, value in pairs:
        if value not in found.setdefault(name, []):
            found[name].append(value)
    return found


def _cell(recipe: Component, target: Target) -> Cell:
    processor = os.uname().machine
    mine = [cell for cell in recipe.cells if cell.target == target.name]
    return next((cell for cell in mine if cell.processor == processor), mine[0])
