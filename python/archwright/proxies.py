"""Proxy settings: what each of the tools that download here makes of them.

Tried with a proxy of our own and uv 0.13, httpx2 (which fetches the sources), pip 26 and apt 2.6; docs/doctor.md has
the table. Values may hold passwords, so they are shown without them, and repairs name variables only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

from .findings import Finding, Level, Repair
from .indexes import index_settings
from .repairs import in_shell

__all__ = ["check_proxy", "without_password"]

_KINDS = ("http_proxy", "https_proxy", "all_proxy")
_SCHEMES = ("http", "https", "socks4", "socks5", "socks5h")

#: What is wrong, how bad it is, and the lines that would repair it.
type _Problem = tuple[Level, str, tuple[Repair, ...]]


def check_proxy() -> Iterator[Finding]:
    """One finding for all of the settings: the worst problem gives its level."""
    named = {n: v for kind in (*_KINDS, "no_proxy") for n in (kind, kind.upper()) if (v := os.environ.get(n))}
    problems = [*_pairs(named), *_shapes(named), *_exceptions(named), *_apt(named), *_pips(named)]
    if not problems:
        text = ", ".join(f"{name}={without_password(value)}" for name, value in named.items())
        yield Finding("proxy", Level.OK, text or "none is set", code="AW328")
        return
    failing = any(level is Level.FAIL for level, _, _ in problems)
    yield Finding(
        "proxy",
        Level.FAIL if failing else Level.NOTE,
        "; ".join(text for _, text, _ in problems),
        "settings that uv, pip, apt and this tool read alike: http_proxy and https_proxy in small letters, with http://",
        "packages, sources and the compiler are downloaded with different tools, and each reads these in its own way",
        "correct the variables as named",
        "AW328",
        tuple(dict.fromkeys(repair for _, _, repairs in problems for repair in repairs)),
    )


def without_password(value: str) -> str:
    """`value` with the name and password in front of its host replaced by stars."""
    return re.sub(r"^((?:[\w+.-]+:)?//)?.*@", r"\1***@", value, flags=re.S)  # to the last @: some have / in it


def _pairs(named: dict[str, str]) -> Iterator[_Problem]:
    """uv takes the capital one; httpx2, pip and apt the small one."""
    for small in (*_KINDS, "no_proxy"):
        capital = small.upper()
        if small in named and capital in named and named[small] != named[capital]:
            shown = f"{small}={without_password(named[small])} and {capital}={without_password(named[capital])} differ"
            yield Level.FAIL, f"{shown}, and tools disagree which one wins", in_shell(f'export {capital}="${small}"')


def _shapes(named: dict[str, str]) -> Iterator[_Problem]:
    for name, value in named.items():
        if name.lower() == "no_proxy":
            continue
        shown = f"{name}={without_password(value)}"
        if "://" not in value:
            if name == "http_proxy" and shutil.which("apt-get"):
                fatal = f"{shown} has no scheme: apt refuses it (`Unsupported proxy configured`)"
                yield Level.FAIL, fatal, in_shell(f'export {name}="http://${name}"')
            else:
                text = f"{shown} has no scheme: some tools take it for http://, others refuse it"
                yield Level.NOTE, text, in_shell(f'export {name}="http://${name}"')
            value = f"http://{value}"
        try:
            parts = urlsplit(value)
            good = bool(parts.hostname) and (parts.port is None or parts.port > 0) and parts.scheme.lower() in _SCHEMES
        except ValueError:
            good = False
        if not good:
            yield Level.FAIL, f"{shown} is no address of a proxy", in_shell(f"unset {name}")
        elif parts.scheme.lower().startswith("socks") and importlib.util.find_spec("socksio") is None:
            text = f"{shown}: this tool and pip cannot speak SOCKS (they lack socksio and PySocks)"
            yield Level.FAIL, text, in_shell(f"unset {name}")


def _exceptions(named: dict[str, str]) -> Iterator[_Problem]:
    value = named.get("no_proxy") or named.get("NO_PROXY", "")
    name = "no_proxy" if "no_proxy" in named else "NO_PROXY"
    if re.search(r"[^,\s][;\s]+[^,\s]", value.strip()):
        text = f"{name} separates its entries with blanks or semicolons: no tool reads that"
        yield Level.NOTE, text, in_shell(f"export {name}=\"$(echo \"${name}\" | tr -s ' ;,' ',')\"")
    odd = [e for e in re.split(r"[;,\s]+", value) if "://" in e or (e.startswith("*") and e != "*")]
    if odd:
        yield Level.NOTE, f"{name}: {', '.join(odd)}: only httpx2 reads such entries; the others want .example.com", ()


def _apt(named: dict[str, str]) -> Iterator[_Problem]:
    """apt reads the small names only, and no ALL_PROXY."""
    if shutil.which("apt-get") is None:
        return
    for small in ("http_proxy", "https_proxy"):
        other = next((name for name in (small.upper(), "all_proxy", "ALL_PROXY") if name in named), None)
        if other and small not in named:
            text = f"{small} is not set beside {other}: apt, which fetches the compiler, reads only that"
            yield Level.NOTE, text, in_shell(f'export {small}="${other}"')


def _pips(named: dict[str, str]) -> Iterator[_Problem]:
    """pip's own setting is read by pip alone: uv and our downloads go by the variables."""
    setting = index_settings().proxy
    values = {value for name, value in named.items() if name.lower() in _KINDS}
    if not setting or setting in values:
        return
    shown = f"pip's setting `proxy` ({without_password(setting)})"
    if values:
        yield Level.NOTE, f"{shown} is none of the variables': pip uses another proxy than uv and this tool", ()
    else:
        lines = in_shell('export https_proxy="$(pip config get global.proxy)"', 'export http_proxy="$https_proxy"')
        if os.environ.get("PIP_PROXY"):
            lines = in_shell('export https_proxy="$PIP_PROXY"', 'export http_proxy="$https_proxy"')
        yield Level.NOTE, f"{shown} is read by pip alone: uv and this tool would connect directly", lines
