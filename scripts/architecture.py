"""Writes docs/architecture.md: the architecture of the package, read from its code.

    python scripts/architecture.py            # writes the page
    python scripts/architecture.py --check    # says whether it is what the code has

It needs nothing but Python. Imports are read, not run: those under ``TYPE_CHECKING`` count, and
are drawn dashed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tunekit"
PAGE = ROOT / "docs/architecture.md"
COMMAND = "python scripts/architecture.py"

# The rooms: what a folder is, or a set of files.
ROOMS = {
    "cli": "the command line",
    "demo": "a sweep on real data",
    "serve": "the report, live in the browser",
    "page": "the report",
    "testing": "doubles for tests",
    "front": "what `import tunekit` gives",
    "simulation": "a sweep again, in virtual time",
    "edges": "one file per noun, on Ray's public API",
    "_ray": "all of Ray's private names",
    "core": "the rules, without Ray",
    "base": "errors, and what else everything may import",
}
# Files that are no edges though they lie beside them. What core/ and _ray/ import is base, too.
ROOM_OF = {
    "__init__": "front",
    "__main__": "cli",
    "clock": "base",
    "deprecated": "base",
    "extras": "base",
    "log": "base",
    "terminal": "base",
    "version": "base",
}
# Arrows of fewer imports are not drawn between groups of edges.
FEWEST = 3

# The edges, by what they are about; a file that is in no group is among the others.
GROUPS = {
    "settings": (
        "what a user writes",
        "tuner config stage confirm policies report distributed trainer_validation "
        "validation_context states",
    ),
    "checks": (
        "what is said before it starts",
        "combinations capacity cluster experiments forgotten picklable resuming validation_checks",
    ),
    "scores": (
        "from the report to the decision",
        "callback searcher consumers waiting deliveries checkpoint_leases draining sweep_end",
    ),
    "scheduling": (
        "what the scheduler sees, and what comes of it",
        "scheduler base_scheduler stand_ins next_trial trial_actions clones score_usage "
        "scheduler_state scheduler_restore certainty",
    ),
    "validations": (
        "running validations",
        "validator stages executor evaluators failures watch later_validations confirming "
        "validation_cache fingerprint gpu_memory",
    ),
    "records": (
        "journal, files and restores",
        "journal ledger places recorded storage driver_lock snapshots restore restored_sweep "
        "leftovers session",
    ),
    "readers": (
        "results, loggers and tables",
        "fold loggers tensorboard lineage sweep sweep_folder sweep_summary tables best_checkpoint "
        "loading loaded_sweep follower later_scores results optuna_study comparison",
    ),
    "others": ("others", ""),
}


@dataclass(frozen=True)
class Module:
    """A file of the package.

    Attributes:
        name: Its dotted name without the package's: ``core.pool``; ``__init__`` is the package.
        purpose: The first line of its docstring.
        lines: How many it has.
        imports: The modules of the package that it imports.
        for_types: Those that it imports for types only.
    """

    name: str
    purpose: str
    lines: int
    imports: frozenset[str]
    for_types: frozenset[str]


def modules() -> dict[str, Module]:
    """Return every module of the package, by name."""
    files = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: module(name, path, files) for name, path in files.items()}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) if len(parts) > 1 and parts[-1] == "__init__" else ".".join(parts)


def module(name: str, path: Path, files: dict[str, Path]) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in ast.walk(tree):
        found[id(node) in typed].update(imported(node, files))
    first = (ast.get_docstring(tree) or "").partition("\n")[0]
    runs = frozenset(found[False] - {name})
    return Module(name, first, text.count("\n"), runs, frozenset(found[True] - runs - {name}))


def imported(node: ast.AST, files: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        named = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        named = [one if one.removeprefix("tunekit.") in files else node.module for one in inner]
    else:
        return set()
    own = [one for one in named if one.split(".")[0] == "tunekit"]
    return {one.partition(".")[2] or "__init__" for one in own}


# Who is where -------------------------------------------------------------------------------


def rooms_of(known: dict[str, Module]) -> dict[str, str]:
    """Return the room of each module."""
    base, left = set(), [m for m in known if m.split(".")[0] in ("core", "_ray")]
    while left:
        for target in known[left.pop()].imports:
            if "." not in target and target not in ROOMS and target not in base:
                base.add(target)
                left.append(target)

    def room(name: str) -> str:
        top = name.split(".")[0]
        if (PACKAGE / top).is_dir():
            return top
        return ROOM_OF.get(name, "base" if name in base else "edges")

    return {name: room(name) for name in known}


def group_of(name: str) -> str:
    """Return the group of an edge."""
    found = [key for key, (_, members) in GROUPS.items() if name in members.split()]
    return found[0] if found else "others"


def circles(known: dict[str, Module], *, types: bool = True) -> list[list[str]]:
    """Return modules that import each other, directly or not; ``types``: also for types only."""
    graph = {m.name: m.imports | (m.for_types if types else frozenset()) for m in known.values()}

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for target in graph.get(left.pop(), frozenset()) - seen:
                seen.add(target)
                left.append(target)
        return seen

    reached = {name: reach(name) for name in graph}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(circle) for circle in sorted(found)]


# The page -----------------------------------------------------------------------------------


def counted(known: Iterable[Module], of: Callable[[str], str], only: Iterable[str]) -> Counter:
    """Count the imports from one place to another, by ``(from, to, for types only)``."""
    places, counts = set(only), Counter()
    for one in known:
        for typed, targets in ((False, one.imports), (True, one.for_types)):
            for target in targets:
                ends = (of(one.name), of(target))
                if ends[0] != ends[1] and places.issuperset(ends):
                    counts[(*ends, typed)] += 1
    return counts


def size(known: Iterable[Module]) -> str:
    of = list(known)
    files = "1 file" if len(of) == 1 else f"{len(of)} files"
    return f"{files}, about {rounded(sum(m.lines for m in of), 100)} lines"


def rounded(lines: int, to: int = 50) -> str:
    """Round a number of lines, so that it does not change with each of them."""
    return f"{max(1, round(lines / to)) * to:,}"


def picture(boxes: dict[str, str], counts: Counter) -> list[str]:
    """Draw a flowchart in Mermaid: boxes, and arrows with the number of imports."""
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {key}["{label}"]' for key, label in boxes.items()]
    order = list(boxes)
    for (start, end, typed), n in sorted(
        counts.items(), key=lambda item: (order.index(item[0][0]), order.index(item[0][1]), item)
    ):
        arrow = "-.->" if typed else "-->"
        lines.append(f"    {start} {arrow}|{n}| {end}")
    return [*lines, "```"]


def table(boxes: Iterable[str], counts: Counter) -> list[str]:
    """Show the same in numbers: who imports, by row; what, by column."""
    order = list(boxes)
    lines = [f"| imports | {' | '.join(order)} |", f"|---|{'---:|' * len(order)}"]
    for start in order:
        row = []
        for end in order:
            runs, typed = counts[start, end, False], counts[start, end, True]
            row.append(" + ".join([str(runs)] * bool(runs) + [f"*{typed}*"] * bool(typed)))
        lines.append(f"| **{start}** | {' | '.join(row)} |")
    return lines


def escaped(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def titled(room: str) -> str:
    """Return a room's name, and what it is."""
    return f"`{room}/`: {ROOMS[room]}" if (PACKAGE / room).is_dir() else f"{room}: {ROOMS[room]}"


def files(known: Iterable[Module]) -> list[str]:
    lines = ["| file | purpose | lines, about |", "|---|---|---:|"]
    for one in sorted(known, key=lambda m: m.name):
        path = PACKAGE / one.name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        name = path.relative_to(PACKAGE).as_posix()
        link = f"[{name}](../tunekit/{name})"
        lines.append(f"| {link} | {escaped(one.purpose)} | {rounded(one.lines)} |")
    return lines


def page() -> str:
    known = modules()
    rooms = rooms_of(known)
    members = {room: [known[name] for name in known if rooms[name] == room] for room in ROOMS}
    between = counted(known.values(), rooms.__getitem__, ROOMS)
    boxes = {
        room: f"<b>{titled(room).replace('`', '')}</b><br>{size(inside)}"
        for room, inside in members.items()
        if inside
    }
    groups: dict[str, list[Module]] = {}
    for key in GROUPS:
        inside = [one for one in members["edges"] if group_of(one.name) == key]
        if inside:
            groups[key] = inside
    among = counted(
        members["edges"], lambda n: group_of(n) if rooms.get(n) == "edges" else "", groups
    )
    parts = {
        key: f"<b>{GROUPS[key][0]}</b><br>{'<br>'.join(one.name for one in inside)}"
        for key, inside in groups.items()
    }
    typed = [f"`{m.name}` → `{t}`" for m in known.values() for t in sorted(m.for_types)]
    lines = [
        "# Architecture",
        "",
        f"`{COMMAND}` writes this page from the code, and a test fails while it is",
        "old. Do not edit it: run that.",
        "",
        f"The package has {size(known.values())}. An arrow leads from the importer to the",
        "imported, with the number of imports, one for each pair of files. Imports go downwards;",
        "[tests/unit/test_layers.py](../tests/unit/test_layers.py) has the floors. Imports for",
        "types only are dashed in the pictures and in italics in the tables"
        + (f": {', '.join(typed)}." if typed else "; there are none."),
        "",
        "## The rooms",
        "",
        "Of the arrows to the base, the picture has that of the core only; the table has all.",
        "",
        *picture(
            boxes, Counter({k: n for k, n in between.items() if k[1] != "base" or k[0] == "core"})
        ),
        "",
        *table(boxes, between),
        "",
        "## The edges",
        "",
        "One file per noun, grouped by topic. Groups import each other; files do not. Arrows of",
        f"fewer than {FEWEST} imports are left out of the picture; the table has all.",
        "",
        *picture(parts, Counter({k: n for k, n in among.items() if n >= FEWEST or k[2]})),
        "",
        *table(parts, among),
    ]
    for room, inside in members.items():
        if room == "edges":
            for key, of in groups.items():
                lines += ["", f"## edges: {GROUPS[key][0]}", "", *files(of)]
        elif inside:
            lines += ["", f"## {titled(room)}", "", *files(inside)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is another")
    if parser.parse_args().check:
        same = PAGE.exists() and PAGE.read_text() == page()
        print("docs/architecture.md is", "up to date" if same else f"old. Run: {COMMAND}")
        return 0 if same else 1
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
