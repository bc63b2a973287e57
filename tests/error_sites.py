"""Where the package raises its errors, read from the source without running it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from acclimate import errors

ROOT = Path(inspect.getfile(errors)).parent
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.Coded)
}


@dataclass(frozen=True)
class Site:
    """One place where an error or a warning is made."""

    where: str
    kind: str
    code: str | None  # None: it repeats the code of another error
    data: frozenset[str]


def list_sites(root: Path = ROOT) -> Iterator[Site]:
    """Yield every place under a folder, or in a file, where an error or a warning is made."""
    for file in [root] if root.is_file() else sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            where = f"{file}:{node.lineno}"
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name in KINDS:
                yield Site(where, name, _code(node), _data(node))
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "warn":
                # `warn(text, AcclimateWarning)` makes a warning without a code.
                kinds = [n.id for n in node.args[1:] if isinstance(n, ast.Name) and n.id in KINDS]
                yield from (Site(where, kind, "", frozenset()) for kind in kinds)


def find_faults(site: Site) -> str | None:
    """Return what is wrong with a place where an error is made, if anything is."""
    if site.code is None:
        return None
    known = KINDS[site.kind].all_codes()
    if site.code not in known:
        return f"{site.where}: {site.kind} has no code {site.code!r}"
    expected = set(re.findall(r"`(\w+)`", known[site.code]))
    if site.data != expected:
        return f"{site.where}: {site.code} has the data {sorted(expected)}, not {sorted(site.data)}"
    return None


def _code(node: ast.Call) -> str | None:
    if not node.args or len(node.args) != 2:
        return ""
    first = node.args[0]
    if isinstance(first, ast.Attribute) and first.attr == "code":
        return None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _data(node: ast.Call) -> frozenset[str]:
    return frozenset(keyword.arg or "**" for keyword in node.keywords)


if __name__ == "__main__":
    for argument in sys.argv[1:] or [str(ROOT)]:
        for found in filter(None, map(find_faults, list_sites(Path(argument)))):
            print(found)
