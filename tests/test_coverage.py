"""Coverage: calls in small trees joined with manifests in small wheels, recipes' data, and the command."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.calls import find_calls
from archwright.components import Component, Operation, Unreached, components
from archwright.coverage import Coverage, Entry, State, cover
from archwright.covercli import _canonical
from archwright.errors import ArchwrightError
from archwright.manifests import Manifest, read_manifest
from archwright.pyvalues import PythonTree
from archwright.sources import fetch
from archwright.targets import target_table

PACKAGE = "archwright_aot_tiny"
NAME = f"{PACKAGE}-1.0+cu132.sm100.b200-py3-none-any.whl"
WORDS = "Assertion error: unsupported architecture"

MakePack = Callable[..., Path]


def case(outcome: str = "compiled", kernels: tuple[str, ...] = (), reason: str = "", m: int = 1) -> dict[str, Any]:
    return {"shape": {"m": m}, "outcome": outcome, "reason": reason, "kernels": list(kernels)}


def manifest(*operations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    used = sorted({name for operation in operations for c in operation["cases"] for name in c["kernels"]})
    return {
        "component": "deep_gemm_aot",
        "version": "1.0",
        "target": "sm100",
        "device": "b200",
        "arch": "sm_100f",
        "model": "Tiny",
        "operations": list(operations),
        "kernels": [{"entry": name, "name": "k"} for name in used],
        **changes,
    }


def operation(name: str, *cases: dict[str, Any], calls: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "calls": list(calls or [f"deep_gemm.{name}"]), "cases": list(cases)}


@pytest.fixture
def make_pack(tmp_path: Path, make_wheel: Callable[..., Path]) -> MakePack:
    """A pack wheel with this manifest and the kernels that it names."""

    def make(content: dict[str, Any] | bytes, *, name: str = NAME, without: str = "") -> Path:
        members = {}
        if isinstance(content, dict):
            entries = {kernel["entry"] for kernel in content["kernels"] or ()} - {without}
            members = {f"{PACKAGE}/root/{entry}/kernel.cubin": b"cubin" for entry in entries}
            content = json.dumps(content).encode()
        return make_wheel(tmp_path / name, {f"{PACKAGE}/manifest.json": content, **members})

    return make


def recipes(**changes: Any) -> Mapping[str, Component]:
    """The real ones, with changes to what deep_gemm's pack says of itself."""
    known = dict(components())
    pack = known["deep_gemm_aot"].pack
    assert pack is not None
    known["deep_gemm_aot"] = replace(known["deep_gemm_aot"], pack=replace(pack, **changes))
    return known


def covered(tmp_path: Path, text: str, *packs: Path, target: str = "sm100", **changes: Any) -> Coverage:
    tree = tmp_path / "tree"
    tree.mkdir(exist_ok=True)
    (tree / "app.py").write_text(text)
    manifests = [read_manifest(path) for path in packs]
    return cover(find_calls(tree), target_table().targets[target], manifests, recipes(**changes))


def the(result: Coverage) -> Entry:
    (entry,) = result.entries
    return entry


def test_covered_says_cases_and_kernels(tmp_path: Path, make_pack: MakePack) -> None:
    # the second case found the first one's kernel in the process: no kernel is listed for it
    pack = make_pack(manifest(operation("f", case(kernels=("a", "b")), case(m=2))))

    entry = the(covered(tmp_path, "import deep_gemm\ndeep_gemm.f()\ndeep_gemm.f()", pack))

    assert (entry.state, entry.reason) == (State.COVERED, "")
    assert (entry.cases, entry.compiled, entry.kernels, entry.operations) == (2, 2, 2, ("f",))
    assert [f"{call.file}:{call.line}" for call in entry.places] == ["app.py:2", "app.py:3"]


def test_no_kernel_is_said_in_upstreams_words(tmp_path: Path, make_pack: MakePack) -> None:
    pack = make_pack(manifest(operation("f", case("no kernel", reason="rare"), *[case("no kernel", reason=WORDS)] * 2)))

    entry = the(covered(tmp_path, "from deep_gemm import f\nf()", pack))

    assert (entry.state, entry.reason, entry.kernels) == (State.NO_KERNEL, WORDS, 0)
    assert (entry.compiled, entry.cases) == (0, 3)


def test_partly_says_how_many_and_why(tmp_path: Path, make_pack: MakePack) -> None:
    pack = make_pack(manifest(operation("f", case(kernels=("a",)), case("no kernel", reason=WORDS), case())))

    entry = the(covered(tmp_path, "from deep_gemm import f\nf()", pack))

    assert (entry.state, entry.reason) == (State.PARTLY, f"1 of 3 cases: {WORDS}")


def test_lowered_is_not_compiled(tmp_path: Path, make_pack: MakePack) -> None:
    lowered = manifest(operation("f", case("lowered", kernels=("a",))), target="ascend950")
    result = covered(tmp_path, "from deep_gemm import f\nf()", make_pack(lowered), target="ascend950")

    entry = the(result)
    assert (entry.state, entry.cases, entry.compiled, entry.kernels) == (State.LOWERED, 1, 0, 1)
    assert result.not_verified.endswith("device_compile: not verified here")


def test_cases_that_compiled_nothing_need_no_compile(tmp_path: Path, make_pack: MakePack) -> None:
    entry = the(covered(tmp_path, "import deep_gemm\ndeep_gemm.f()", make_pack(manifest(operation("f", case())))))

    assert (entry.state, entry.kernels) == (State.NO_COMPILE, 0)


@pytest.mark.parametrize("cases", [(), (case("stopped", reason="out of scope"),)])
def test_what_is_not_known_stays_unknown(
    tmp_path: Path, make_pack: MakePack, cases: tuple[dict[str, Any], ...]
) -> None:
    planned = (Operation("f", "f", ("deep_gemm.f",), ("sm100",), 1, 1),)
    pack = make_pack(manifest(operation("f", *cases)))

    entry = the(covered(tmp_path, "import deep_gemm\ndeep_gemm.f()", pack, operations=planned))

    assert entry.state is State.UNKNOWN
    assert entry.reason


def test_two_operations_of_one_entry_point_add_up(tmp_path: Path, make_pack: MakePack) -> None:
    calls = ("deep_gemm.f", "deep_gemm.shared")
    pack = make_pack(
        manifest(
            operation("f", case(kernels=("a", "b")), calls=calls),
            operation("g", case(kernels=("b", "c")), case("no kernel", reason=WORDS), calls=("deep_gemm.shared",)),
        )
    )

    entry = the(covered(tmp_path, "import deep_gemm\ndeep_gemm.shared()", pack))

    assert (entry.state, entry.cases, entry.kernels, entry.operations) == (State.PARTLY, 3, 3, ("f", "g"))
    assert entry.reason == f"1 of 3 cases: with g: {WORDS}"  # which of g's calls said that is not known


def test_a_recipe_alone_covers_nothing(tmp_path: Path, make_pack: MakePack) -> None:
    planned = (Operation("f", "f", ("deep_gemm.f",), ("sm100", "sm90"), 1, 1),)
    text = "import deep_gemm\ndeep_gemm.f()"

    without = the(covered(tmp_path, text, operations=planned))
    other = the(covered(tmp_path, text, make_pack(manifest(operation("g", case()))), operations=planned))
    experimental = the(covered(tmp_path, text, target="sm90", operations=planned))

    assert {entry.state for entry in (without, other, experimental)} == {State.UNKNOWN}
    assert "`archwright aot sm100 deep_gemm_aot`" in without.reason
    assert "another recipe" in other.reason
    assert "--experimental`" in experimental.reason


def test_settings_and_what_cannot_be_reached_are_the_recipes_data(tmp_path: Path, make_pack: MakePack) -> None:
    pack = make_pack(manifest(operation("f", case(kernels=("a",)), calls=("deep_gemm.f", "deep_gemm.set_it"))))
    text = "import deep_gemm\ndeep_gemm.set_it()\ndeep_gemm.far()\ndeep_gemm.other()"
    data = {"settings": ("deep_gemm.set_it",), "unreached": (Unreached("deep_gemm.far", "needs two devices"),)}

    found = {entry.entry: (entry.state, entry.reason) for entry in covered(tmp_path, text, pack, **data).entries}

    assert found == {
        "deep_gemm.set_it": (State.SETTING, ""),  # though an operation calls it and has kernels
        "deep_gemm.far": (State.NOT_REACHED, "needs two devices"),
        "deep_gemm.other": (State.NOT_IN_A_PACK, "no recipe names it"),
    }


def test_a_library_with_kernels_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import flash_mla\nflash_mla.f()")
    census, targets = find_calls(tmp_path), target_table().targets

    def state(target: str, held: str) -> tuple[State, str]:
        entry = the(cover(census, targets[target], [], components(), kernels_of=lambda recipe: held))
        return entry.state, entry.reason

    assert state("sm100", "138 kernels") == (State.AHEAD, "138 kernels")
    assert state("sm100", "")[0] is State.UNKNOWN
    assert state("sm90", "138 kernels")[0] is State.NO_KERNEL
    assert "removed all Hopper code" in state("sm90", "")[1]


def test_a_refused_library_is_refused_whatever_its_pack_says(tmp_path: Path) -> None:
    planned = (Operation("f", "f", ("deep_gemm.f",), ("sm100",), 1, 1),)
    text = "import deep_gemm\ndeep_gemm.f()\ndeep_gemm.set_pdl()"

    result = covered(tmp_path, text, target="ascend950", operations=planned)

    assert {entry.state for entry in result.entries} == {State.REFUSED}


def test_calls_of_other_devices_and_mere_mentions_are_left_out(tmp_path: Path) -> None:
    text = (
        "import deep_gemm\n"
        "def f(x: deep_gemm.T):\n"
        "    if P.is_npu: deep_gemm.ascend()\n"
        "    if P.is_gpu: deep_gemm.cuda(deep_gemm.handed_on)\n"
    )

    here, there = (covered(tmp_path, text, target=target) for target in ("sm100", "ascend950"))

    assert [entry.entry for entry in here.entries] == ["deep_gemm.cuda"]
    assert here.elsewhere == ("deep_gemm.ascend",)
    assert here.mentioned == ("deep_gemm.T", "deep_gemm.handed_on")
    assert [entry.entry for entry in there.entries] == ["deep_gemm.ascend"]


def test_two_names_of_one_function_meet(tmp_path: Path, make_pack: MakePack) -> None:
    pack = make_pack(manifest(operation("f", case(kernels=("a",)), calls=("deep_gemm.f",))))
    (tmp_path / "app.py").write_text("from deep_gemm.low.level import f\nf()")
    same = {"deep_gemm.f": "deep_gemm.low.level.f"}

    result = cover(
        find_calls(tmp_path),
        target_table().targets["sm100"],
        [read_manifest(pack)],
        components(),
        canonical=lambda name: same.get(name, name),
    )

    assert (the(result).entry, the(result).state) == ("deep_gemm.low.level.f", State.COVERED)


def test_packs_that_do_not_fit_together_are_refused(tmp_path: Path, make_pack: MakePack) -> None:
    one = make_pack(manifest(operation("f", case())))
    two = make_pack(manifest(operation("f", case()), device="gb200"), name=NAME.replace("b200", "gb200"))

    for packs, target in (((one,), "sm90"), ((one, two), "sm100")):
        with pytest.raises(ArchwrightError) as caught:
            covered(tmp_path, "", *packs, target=target)
        assert caught.value.code == "AW109"


# -------------------------------------------------------------------------------------------- wheels nobody vouches for


def no_kernel_row() -> dict[str, Any]:
    return manifest(operation("f", case(kernels=("a",))), kernels=[])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "is not of type 'object'"),
        (b"{}", "required property"),
        (manifest(operation("f", case()), kernels=None), "$.kernels"),
        (manifest({"name": "f", "calls": "f", "cases": []}), "$.operations[0].calls"),
        (manifest(operation("f", {**case(), "outcome": 1})), "cases[0].outcome"),
        (no_kernel_row(), "names a, which the wheel does not have"),
    ],
)
def test_a_manifest_that_is_none_is_a_clear_error(make_pack: MakePack, content: Any, said: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        read_manifest(make_pack(content))

    assert caught.value.code == "AW420"
    assert said in caught.value.found
    assert len(caught.value.found) < 400


def test_a_kernel_that_is_not_in_the_wheel_covers_nothing(make_pack: MakePack) -> None:
    with pytest.raises(ArchwrightError) as caught:
        read_manifest(make_pack(manifest(operation("f", case(kernels=("a", "b")))), without="b"))
    assert caught.value.code == "AW420"
    assert "names b" in caught.value.found


def test_a_wheel_without_a_manifest_changed_cut_off_or_hostile(
    tmp_path: Path, make_pack: MakePack, make_wheel: Callable[..., Path]
) -> None:
    none = make_wheel(tmp_path / NAME.replace("tiny", "none"))
    valid = json.dumps(manifest(operation("f", case()))).encode()
    changed = make_wheel(tmp_path / NAME, {f"{PACKAGE}/manifest.json": valid}, tamper=b"x")
    short = make_pack(manifest(operation("f", case())), name=NAME.replace("1.0", "2.0"))
    short.write_bytes(short.read_bytes()[:-100])
    hostile = make_pack(manifest(operation("f", case())), name=NAME.replace("1.0", "3.0"))
    with zipfile.ZipFile(hostile, "a") as archive:
        archive.writestr("../outside", b"")

    codes = []
    for path in (none, changed, short, hostile):
        with pytest.raises(ArchwrightError) as caught:
            read_manifest(path)
        codes.append(caught.value.code)
    assert codes == ["AW420", "AW420", "AW420", "AW419"]


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command_in_words_and_as_json(
    tmp_path: Path, make_pack: MakePack, run: Callable[..., tuple[int, str, str]]
) -> None:
    pack = make_pack(manifest(operation("f", case(kernels=("a",))), operation("g", case("no kernel", reason=WORDS))))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "app.py").write_text("import deep_gemm\ndeep_gemm.f()\ndeep_gemm.g()\ndeep_gemm.h()")
    (tree / "bad.py").write_text("def")
    words = ("coverage", "sm100", "--pack", str(pack), "--source", str(tree), "--offline")

    status, out, err = run(*words)
    json_status, json_out, _ = run(*words, "--json")
    found = json.loads(json_out)

    assert status == json_status == 0
    assert WORDS in out
    assert "deep_gemm: 3 entry points: 1 covered, 1 no kernel, 1 not in a pack" in out
    assert "Tiny, b200, sm_100f" in out
    assert "no device has run a kernel here" in out
    assert "bad.py" in err
    assert found["counts"] == {"deep_gemm": {"covered": 1, "no kernel": 1, "not in a pack": 1}}
    assert found["entries"][0]["places"] == ["app.py:2"]
    assert found["manifests"][0]["sha256"] == read_manifest(pack).sha256


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("sm89",), "AW102", 3),
        (("sm100", "--source", "/nonexistent"), "AW109", 2),
        (("sm100", "--pack", "/nonexistent.whl"), "AW420", 1),
    ],
)
def test_bad_input_is_an_error(
    run: Callable[..., tuple[int, str, str]], words: tuple[str, ...], code: str, status: int
) -> None:
    found, out, _ = run("coverage", *words, "--offline", "--json")
    assert (found, json.loads(out)["error"]["code"]) == (status, code)


# ------------------------------------------------------------------------------------------------- the real recipes


def test_recipes_name_only_what_there_is() -> None:
    """A misspelt name in a recipe would cover nothing, silently."""
    try:
        tree = fetch(components()["engine"], offline=True).path
        canonical = _canonical(tree, offline=True)
    except ArchwrightError as error:
        pytest.skip(f"DeepInfer's source is not in the cache ({error.code})")
    packs = [recipe.pack for recipe in components().values() if recipe.pack]
    named = {name for pack in packs for name in (*pack.settings, *(u.call for u in pack.unreached))}
    named |= {name for pack in packs for operation in pack.operations for name in operation.calls}
    called = {canonical(call.entry) for call in find_calls(tree).calls}
    own = PythonTree(tree, "deepinfer")

    assert len(named) > 10
    unknown = {name for name in named if canonical(name) not in called and not own.defines(name)}
    assert unknown == set()


def test_the_real_packs_of_this_checkout(root: Path) -> None:
    wheels = sorted((root / "dist").glob("*/archwright_aot_*.whl"))
    if not wheels:
        pytest.skip("no packs in dist/")
    manifests: list[Manifest] = [read_manifest(path) for path in wheels]
    assert all(m.operations and m.target in m.wheel.parts for m in manifests)
    for m in manifests:
        for ran in m.operations:
            assert ran.outcomes.keys() <= {"compiled", "no kernel"}
            assert bool(ran.reasons) == ("no kernel" in ran.outcomes)
