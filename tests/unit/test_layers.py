"""The house rules: imports go downwards, and Ray's private names live in one package."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tunekit
from scripts import layers

ROOT = Path(tunekit.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# From the bottom up; a module imports from floors below its own only, or from its own floor
# where that is one package.
FLOORS = [
    {"version"},
    {"errors"},
    {"core"},
    {"messages"},
    {"_ray"},
    {"schedulers", "training"},
    {"policies"},
    {"config"},
    {"journal"},
    {"results", "validating"},
    {"distributed"},
    {"driver"},
    {"following"},
    {"reading"},
    {"board"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
PURE = {"errors", "core", "messages"}
OUTSIDE_FOR_PURE = {"ray", "torch", "pandas", "numpy", "optuna", "tensorboard", "os", "io", "time"}


def room_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def floor_of(room: str) -> int:
    return next(n for n, floor in enumerate(FLOORS) if room in floor)


@cache
def imports(path: Path) -> list[tuple[str, str]]:
    """Return ``(module, name)`` for everything that a module imports, also for types only."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found += [(node.module or "", alias.name) for alias in node.names]
    return found


def is_there(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()


def test_imports_go_downwards():
    for room, (module, name) in ((room_of(path), one) for path in MODULES for one in imports(path)):
        head, *parts = module.split(".")
        inner = name if name and is_there(name) else "__init__"
        target = parts[0] if parts else inner
        if head == "tunekit" and target != room:
            assert floor_of(target) < floor_of(room), f"{room} imports {target}, not below it"


def test_the_map_shows_these_imports():
    page = layers.PAGE.read_text()
    assert layers.rewritten(page) == page, "The map is old. Run: python scripts/layers.py"


def test_no_sweep_knows_of_following():
    using = {
        room_of(path) for path in MODULES for m, _ in imports(path) if "tunekit.following" in m
    }
    assert using == {"following", "reading", "cli", "__init__"}


# What the board may read besides itself.
BOARD_READS = {
    *("core", "reading", "journal", "_ray.storage"),
    *("errors", "messages", "version"),
}


def test_the_board_reads_and_runs_nothing():
    for path in (path for path in MODULES if room_of(path) == "board"):
        for module, _ in imports(path):
            if module.startswith("tunekit.") and not module.startswith("tunekit.board"):
                inner = module.removeprefix("tunekit.")
                known = any(inner == one or inner.startswith(f"{one}.") for one in BOARD_READS)
                assert known, f"{path.relative_to(ROOT)} imports {module}"


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_no_module_imports_itself_by_way_of_others():
    known = {dotted(path) for path in MODULES}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        own = [(m, name) for m, name in imports(path) if m.split(".")[0] == "tunekit"]
        inner = {f"{module}.{name}": module for module, name in own}
        graph[dotted(path)] = {one if one in known else module for one, module in inner.items()} - {
            dotted(path)
        }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_core_is_pure():
    for path in (path for path in MODULES if room_of(path) in PURE):
        used = {module.split(".")[0] for module, _ in imports(path)}
        assert not used & OUTSIDE_FOR_PURE, path


def test_private_names_of_ray_are_imported_in_one_package():
    """What is read from an object there, ruff finds (SLF001)."""
    for path in (path for path in MODULES if room_of(path) != "_ray"):
        for module, name in imports(path):
            private = any(map(is_private, [*module.split("."), name]))
            assert not (module.startswith("ray") and private), f"{module}.{name} belongs into _ray"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_abc_"))


def is_itself(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def own_private_names(kind: type) -> set[str]:
    """Private names that a class has, or gets and sets in itself."""
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


def test_classes_made_from_rays_leave_what_is_private_there_alone():
    outside = (path for path in MODULES if room_of(path) != "_ray" and path.stem != "__main__")
    for module in (importlib.import_module(dotted(path)) for path in outside):
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                assert not rays_private_names_in(kind), f"{kind} uses what is private in Ray"


def test_public_names_are_sorted_and_documented():
    assert tunekit.__all__ == sorted(tunekit.__all__, key=lambda n: (not n.isupper(), n))
    assert set(tunekit.__all__) == set(tunekit._HOME_OF) <= set(dir(tunekit))
    # What type checkers see is what is there.
    tree = ast.parse((ROOT / "__init__.py").read_text())
    types = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(f"{one.module}", a.name) for one in types.body for a in one.names}
    assert seen == {
        *((home, name) for name, home in tunekit._HOME_OF.items()),
        *(("tunekit", name) for name in tunekit._SUBMODULES),
    }
    for name in tunekit.__all__:
        thing = getattr(tunekit, name)
        if not isinstance(thing, str):
            assert thing.__doc__, f"{name} has no docstring"
