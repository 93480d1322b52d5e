"""The house rules: imports go downwards, and Ray's private names live in one package."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

import tunekit

ROOT = Path(tunekit.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# From the bottom up; a module imports from floors below its own only, or from its own floor
# where that is one package.
FLOORS = [
    {"errors", "version"},
    {"core", "extras"},
    {"pickles", "places"},
    {"_ray", "clock", "log", "picklable", "recorded", "storage", "validation_context"},
    {
        "config",
        "driver_lock",
        "executor",
        "experiments",
        "fold",
        "journal",
        "loggers",
        "report",
        "states",
        "tensorboard",
    },
    {"judges"},
    {
        "replay",
        "snapshots",
        "combinations",
        "distributed",
        "failures",
        "forgotten",
        "draining",
        "evaluators",
        "leftovers",
        "lineage",
        "policies",
        "session",
        "trainer_validation",
        "validator",
        "watch",
    },
    {"callback", "resuming", "searcher", "sweep"},
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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_abc_"))


def own_private_names(kind: type) -> set[str]:
    """Private names that a class has, or gets and sets in itself."""

    def is_itself(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id == "super"
        return isinstance(node, ast.Name) and node.id in ("self", "cls")

    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except OSError:  # one that a decorator has made
        tree = ast.Module([], [])
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and is_itself(n.value)}
    return set(filter(is_private, used | set(vars(kind))))


def rays_private_names_in(kind: type) -> set[str]:
    """Those of its names that are private ones of a class of Ray's that it is made from."""
    theirs = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "ray"]
    return own_private_names(kind) & set().union(*map(own_private_names, theirs))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_classes_made_from_rays_leave_what_is_private_there_alone(path):
    if room_of(path) in ("_ray", "__main__") or path.stem == "__main__":
        return
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    module: Any = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__:
            assert not rays_private_names_in(kind), f"{kind.__name__} uses what is private in Ray"


def test_what_is_private_in_a_class_of_rays_is_found_out():
    class Uses(TBXLoggerCallback):
        def close(self, trial: Any) -> None:
            self._trial_writer.pop(trial)

    class Overrides(JsonLoggerCallback):
        def _restore_from_remote(self, file_name: str, trial: Any) -> None:
            pass

    class Neither(TBXLoggerCallback):
        def setup(self, **info: Any) -> None:
            self._own = info

    assert rays_private_names_in(Uses) == {"_trial_writer"}
    assert rays_private_names_in(Overrides) == {"_restore_from_remote"}
    assert rays_private_names_in(Neither) == set()


def test_public_names_are_sorted_and_documented():
    assert tunekit.__all__ == sorted(tunekit.__all__, key=lambda n: (not n.isupper(), n))
    for name in tunekit.__all__:
        thing = getattr(tunekit, name)
        if not isinstance(thing, str):
            assert thing.__doc__, f"{name} has no docstring"


def test_all_modules_say_what_they_are():
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
