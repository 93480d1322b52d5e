"""Change single operators and values of the rules, and list the changes that no test notices.

    python scripts/mutants.py                       # 50 mutants of tunekit/core: about an hour
    python scripts/mutants.py --n 10 --seed 7       # others
    python scripts/mutants.py --file pool.py        # of one file

A mutant is drawn from all places in ``tunekit/core`` where a comparison, a boolean or arithmetic
operator, a constant, or ``min`` and ``max`` can be replaced, without docstrings and messages. In a
copy of the repository, it runs the doctests of its file and the unit tests of the rules, then the
tests that noticed earlier mutants, then all that need no Ray, until one fails. What survives is
printed: a test is missing, or the mutant does the same as the original. The exit status is 1 if any
survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "tunekit" / "core"
#: Files that only describe data or texts.
LEFT_OUT = {"__init__.py", "commands.py", "summaries.py"}
#: A mutant that does not end within this many seconds is noticed, too.
LIMIT_S = 900

SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutated(node: ast.AST) -> bool:
    """Change a node in place; return False if there is nothing to change."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in SWAPPED:
            node.ops = [SWAPPED[type(one)]()]
        case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPPED:
            node.op = SWAPPED[type(node.op)]()
        case ast.UnaryOp(op=ast.Not()):
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float()):
            node.value = node.value + 1
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            node.func = ast.Name(NAMES[name], ast.Load())
        case _:
            return False
    return True


def places(tree: ast.Module) -> Iterator[int]:
    """Return the positions, in the order of ``ast.walk``, of the nodes that can be changed."""
    fixed: set[int] = set()  # annotations, and the defaults of data
    for node in ast.walk(tree):
        kept = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.Raise):
            kept.append(node)
        if isinstance(node, ast.ClassDef):
            kept += [one for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign))]
            kept += [*node.decorator_list, *node.keywords]
        fixed |= {id(inner) for one in kept if one for inner in ast.walk(one)}
    for n, node in enumerate(ast.walk(tree)):
        if id(node) not in fixed and mutated(copy.deepcopy(node)):
            yield n


def mutants(only: str) -> list[tuple[Path, int]]:
    """Return all mutants: files with positions."""
    files = sorted(path for path in CORE.glob("*.py") if path.name not in LEFT_OUT)
    chosen = [path for path in files if only in ("", path.name)]
    return [(path, n) for path in chosen for n in places(ast.parse(path.read_text()))]


def changed(path: Path, place: int) -> tuple[str, str]:
    """Return the text of a mutant, and the line that differs, before and after."""
    text = path.read_text()
    tree = ast.parse(text)
    node = list(ast.walk(tree))[place]
    assert isinstance(node, ast.expr)
    mutated(node)
    lines, source = text.splitlines(keepends=True), ast.unparse(node)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last].encode()[node.end_col_offset :].decode()
    made = "".join([*lines[:first], f"{before}({source}){after}", *lines[last + 1 :]])
    differs = difflib.unified_diff(text.splitlines(), made.splitlines(), lineterm="", n=0)
    return made, "\n".join(line for line in list(differs)[3:])


def survives(tree: Path, path: Path, text: str, quick: dict[str, None]) -> tuple[bool, str]:
    """Run the tests with a mutant; return whether it survives, and the test that failed.

    ``quick`` are the tests that noticed earlier ones, to which it adds this one's.
    """
    target = tree / path.relative_to(ROOT)
    original = target.read_text()
    target.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(tree), "TUNEKIT_TESTS": str(tree)}
    first = [str(target.relative_to(tree)), "tests/unit/core"]
    two = ["--numprocesses", "2", "--dist", "worksteal"]
    whole = ["tests/unit", "tests/contract", "tests/kills", *two]
    try:
        for asked in (first, *([[*quick, *two]] if quick else ()), whole):
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *asked],
                cwd=tree,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
            if done.returncode:
                lines = done.stdout.splitlines()
                failed = [line[7:].split(" - ")[0] for line in lines if line[:7] == "FAILED "]
                if asked is whole:
                    quick.update(dict.fromkeys(failed))
                return False, (failed or lines[-1:] or [""])[0]
    except subprocess.TimeoutExpired:
        return False, f"not over after {LIMIT_S} s"
    finally:
        target.write_text(original)
    return True, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=50, help="how many mutants (50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", default="", help="of one file of tunekit/core only")
    asked = parser.parse_args()
    found = mutants(asked.file)
    drawn = random.Random(asked.seed).sample(found, min(asked.n, len(found)))
    left = 0
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder)
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
        for name in listed.stdout.decode().splitlines():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        original, quick = CORE / "pool.py", dict[str, None]()
        alive, test = survives(tree, original, original.read_text(), quick)
        if not alive:
            sys.exit(f"Tests fail without a mutant: {test}")
        for path, place in drawn:
            began = time.monotonic()
            text, difference = changed(path, place)
            alive, test = survives(tree, path, text, quick)
            left += alive
            took = f"{time.monotonic() - began:.0f} s"
            outcome = "SURVIVES" if alive else "noticed"
            print(f"{outcome} {path.name}, {took} {test}\n{difference}", flush=True)
    print(f"{len(drawn) - left} of {len(drawn)} mutants are noticed.")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
