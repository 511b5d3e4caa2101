"""Compiles a source pack's kernels with the CANN of this machine, into TileLang's own cache:

    source <CANN>/set_env.sh
    python -m PACKAGE              # all of them; those that are there already are left alone
    python -m PACKAGE --list       # what there is, and what each was lowered for

TileLang does the compiling: same command lines, same keys, same cache as when it compiles at run time
($TILELANG_CACHE_DIR). So DeepInfer then finds every binary, as long as it asks for the same kernels: with the releases
of TileLang and tile-kernels, and the number of cores, that the manifest names.

Exit status: 0 all there, 4 no CANN compiler, 5 some did not compile (the others are kept).
"""

import argparse
import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())
#: First bytes of what TileLang's linker makes.
ELF = b"\x7fELF"


def main():
    parser = argparse.ArgumentParser(prog=f"python -m {HERE.name}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="compile nothing, show what there is")
    options = parser.parse_args()
    entries = sorted({kernel["entry"] for kernel in MANIFEST["kernels"]})
    if options.list:
        for kernel in MANIFEST["kernels"]:
            print(kernel["entry"], kernel["name"], ", ".join(kernel["operations"]))
        return 0
    check_versions()
    from tilelang.contrib import bisheng

    try:
        print(f"bisheng: {bisheng.find_bisheng_path()}, ld.lld: {bisheng.find_ld_lld_path()}")
    except RuntimeError as error:
        print(f"{HERE.name}: {error}\n  fix: `source <CANN>/set_env.sh`", file=sys.stderr)
        return 4
    failed = 0
    for number, entry in enumerate(entries, 1):
        print(f"[{number}/{len(entries)}] {entry}: ", end="", flush=True)
        try:
            print(compiled(HERE / "root" / entry))
        except Exception as error:
            failed += 1
            print(f"failed: {error}")
    print(f"{len(entries) - failed} of {len(entries)} compiled. That they are correct or fast was not shown.")
    return 5 if failed else 0


def check_versions():
    """Another TileLang would ask for other sources."""
    for name, version in MANIFEST["libraries"].items():
        found = importlib.metadata.version(name)
        if found != version:
            sys.exit(f"{HERE.name}: these kernels are for {name} {version}, and {found} is installed")


def compiled(place):
    """Compile one entry, unless TileLang has it. Returns what was done; raises what TileLang raises."""
    from tilelang.cache.ascend_binary_cache import AscendBinaryCache
    from tilelang.contrib import bisheng
    from tilelang.env import TILELANG_TEMPLATE_PATH

    data = (place / "kernel.asc").read_bytes()
    name = str(place.relative_to(HERE / "root") / "kernel.asc")
    if hashlib.sha256(data).hexdigest() != MANIFEST["files"][name]:
        raise RuntimeError("changed since the pack was made: install it again")
    code, build = data.decode(), json.loads((place / "build.json").read_text())["compiler"]
    options = [option.replace("@templates@", TILELANG_TEMPLATE_PATH) for option in build["options"]]
    key = AscendBinaryCache.make_key(code=code, **build | {"options": options})
    if AscendBinaryCache.load(key, build["compile_format"]) is not None:
        return "there already"
    common = bisheng.get_bisheng_compile_options(build["target_arch"])
    if options[: len(common)] != common or build["linker_options"] != bisheng.get_aibin_linker_options():
        raise RuntimeError("lowered for other compiler options than this TileLang's")
    binary = bisheng.compile_ascend(
        code, target_format=build["compile_format"], npu_arch=build["target_arch"], options=options[len(common) :]
    )
    if bytes(binary[:4]) != ELF:
        raise RuntimeError("what the compiler made is no ELF file: is it a real bisheng?")
    AscendBinaryCache.save(key, build["compile_format"], bytes(binary))
    return f"compiled, {len(binary)} bytes"


if __name__ == "__main__":
    sys.exit(main())
