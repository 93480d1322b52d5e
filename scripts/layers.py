"""Draw the maps in CONTRIBUTING.md: tunekit's folders and files, and the calls of a step.

    python scripts/layers.py    # puts them into CONTRIBUTING.md

Each folder or file is above all that it imports. Of its imports, the map has those that none of the
others imports in turn. A step has the parts that ``Run.step`` lists, in order.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "tunekit", ROOT / "CONTRIBUTING.md"


def imports() -> dict[str, set[str]]:
    """Return what each folder or file of the package imports from the others."""
    paths = [path for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__")]
    found: dict[str, set[str]] = {path.relative_to(PACKAGE).parts[0]: set() for path in paths}
    names = {name.removesuffix(".py"): name for name in found}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("tunekit."):
                inner = [*(node.module or "").split("."), *(one.name for one in node.names)][1]
                found[path.relative_to(PACKAGE).parts[0]].add(names.get(inner, ""))
    return {name: used - {name, ""} for name, used in found.items()}


def purpose(name: str) -> str:
    """Return the first line of the docstring of a folder or file."""
    file = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / name
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.split("\n")[0].replace("``", "`")


def drawn() -> str:
    """Return the map as a table."""
    direct, below = imports(), dict[str, set[str]]()
    for name in TopologicalSorter(direct).static_order():
        below[name] = direct[name].union(*(below[one] for one in direct[name]))
    rows = ["| | what it does | imports |", "|---|---|---|"]
    for name in sorted(below, key=lambda one: (-len(below[one]), one)):
        nearest = direct[name] - set().union(*(below[one] for one in direct[name]))
        rows.append(f"| `{name}` | {purpose(name)} | {', '.join(sorted(nearest))} |")
    return "\n".join(rows)


def steps() -> str:
    """Return the parts of a step as a table: why each stands where it does, and what it calls."""
    text = (PACKAGE / "driver" / "run.py").read_text()
    run = next(one for one in ast.parse(text).body if isinstance(one, ast.ClassDef))
    methods = {one.name: one for one in run.body if isinstance(one, ast.FunctionDef)}
    lines, rows = text.splitlines(), ["| part | why there | calls |", "|---|---|---|"]
    for call in methods["step"].body[1:]:
        name = ast.unparse(call).removeprefix("self.").partition("(")[0]
        above = lines[call.lineno - 2].strip()
        why = above.removeprefix("# ") if above.startswith("#") else ""
        body = methods.get(name, call)
        found = [ast.unparse(one.func) for one in ast.walk(body) if isinstance(one, ast.Call)]
        asked = dict.fromkeys(one.removeprefix("self.") for one in found if one.count(".") > 1)
        label = name.lstrip("_").replace("_", " ").replace(".", ": ")
        rows.append(f"| {label} | {why} | {', '.join(f'`{one}`' for one in asked)} |")
    return "\n".join(rows)


def rewritten(page: str) -> str:
    """Return the page with the current maps."""
    for name, table in {"layers": drawn(), "steps": steps()}.items():
        where = f"(?<=<!-- begin: {name} -->\n).*?(?=<!-- end: {name} -->)"
        page = re.sub(where, f"\n{table}\n\n".replace("\\", "\\\\"), page, count=1, flags=re.S)
    return page


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
