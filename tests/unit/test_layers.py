"""The house rules: imports go downwards, and Ray's private names live in one package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tunekit

ROOT = Path(tunekit.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# From the bottom up; a module imports from floors below its own only, or from its own floor
# where that is one package.
FLOORS = [
    {"errors", "version"},
    {"core"},
    {"_ray", "clock", "storage"},
    {"config", "executor", "journal", "loggers", "report", "fold", "tensorboard"},
    {"judges"},
    {
        "replay",
        "snapshots",
        "combinations",
        "distributed",
        "evaluators",
        "lineage",
        "policies",
        "session",
        "trainer_validation",
        "validator",
    },
    {"callback", "searcher", "sweep"},
    {"scheduler", "page"},
    {"cluster"},
    {"tuner"},
    {"testing", "__init__"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
PURE = {"errors", "core"}
OUTSIDE_FOR_PURE = {"ray", "torch", "pandas", "numpy", "optuna", "tensorboard", "os", "io", "time"}


def room_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def floor_of(room: str) -> int:
    return next(n for n, floor in enumerate(FLOORS) if room in floor)


def imports(path: Path) -> list[tuple[str, str]]:
    """``(module, name)`` for everything that a module imports at run time."""
    found = []
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path):
    room = room_of(path)
    for module, name in imports(path):
        if module.split(".")[0] != "tunekit":
            continue
        parts = module.split(".")
        inner = name if name and (ROOT / name).exists() else "__init__"
        target = parts[1] if len(parts) > 1 else inner
        if target == room:
            continue
        assert floor_of(target) < floor_of(room), f"{room} imports {target}, which is not below it"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_is_pure(path):
    if room_of(path) in PURE:
        used = {module.split(".")[0] for module, _ in imports(path)}
        assert not used & OUTSIDE_FOR_PURE


PRIVATE_ATTRIBUTES = re.compile(r"(?:controller|trial|tuner|manager|session|search_alg)\._[a-z]\w*")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_private_names_of_ray_live_in_one_package(path):
    if room_of(path) == "_ray":
        return
    for module, name in imports(path):
        if module.split(".")[0] == "ray":
            assert not re.search(r"\._", module), f"{module} is private"
            assert not name.startswith("_"), f"{module}.{name} is private"
    text = path.read_text()
    for found in PRIVATE_ATTRIBUTES.finditer(text):
        line = text[: found.start()].count("\n") + 1
        before = text[: found.start()].rsplit("\n", 1)[-1]
        assert before.endswith(("self.", "_")), f"line {line}: {found.group()} is private"


def test_public_names_are_sorted_and_documented():
    assert tunekit.__all__ == sorted(tunekit.__all__, key=lambda n: (not n.isupper(), n))
    for name in tunekit.__all__:
        thing = getattr(tunekit, name)
        if not isinstance(thing, str):
            assert thing.__doc__, f"{name} has no docstring"


def test_all_modules_say_what_they_are():
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
