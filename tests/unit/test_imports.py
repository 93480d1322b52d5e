"""Imports go downwards, only one package uses Ray's private names, and each import is required."""

from __future__ import annotations

import ast
import configparser
import importlib
import inspect
import json
import pickle
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest

import tunekit
from scripts import layers
from tests.support.readers import session, trial
from tunekit.errors import MissingExtraError, extra

ROOT = Path(tunekit.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

PURE = {"errors", "core", "messages"}
OUTSIDE_FOR_PURE = {"ray", "torch", "pandas", "numpy", "optuna", "tensorboard", "os", "io", "time"}


def room_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


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


def test_map_in_contributing_shows_all_imports_and_none_is_circular():
    """Drawing it raises CycleError if two folders or files import each other."""
    page = layers.PAGE.read_text()
    assert layers.rewritten(page) == page, "run: python scripts/layers.py"


# What the board may read besides itself.
BOARD_READS = {"core", "errors", "journal", "messages", "reading", "version"}


def test_board_imports_only_what_reads_sweeps():
    for path in (path for path in MODULES if room_of(path) == "board"):
        for module, _ in imports(path):
            if module.startswith("tunekit.") and not module.startswith("tunekit.board"):
                inner = module.removeprefix("tunekit.")
                known = any(inner == one or inner.startswith(f"{one}.") for one in BOARD_READS)
                assert known, f"{path.relative_to(ROOT)} imports {module}"


# Run by another Python, which has imported nothing yet.
LOOK = """
import contextlib, io, sys

import click
import tunekit
from tunekit.board.serve import Application
from tunekit.cli.commands import tunekit as command

def seen():
    return sorted({"ray", "torch", "pandas"} & sys.modules.keys())

path, found = sys.argv[1], {}
for line in (
    ["status"], ["status", "--json"], ["best"], ["report"], ["list", ".."], ["stop", "--trial", "a"]
):
    name, *options = [path + "/.." if one == ".." else one for one in line]
    arguments = [name, *([] if name == "list" else [path]), *options]
    # No driver runs the sweep, so that no trial of it can be stopped.
    ignored = contextlib.suppress(*[click.ClickException] * (name == "stop"))
    with contextlib.redirect_stdout(io.StringIO()), ignored:
        command(arguments, standalone_mode=False)
    found[" ".join(line)] = seen()
sweep = tunekit.load(path)
sweep.ranking(), sweep.best(), sweep.summary(), sweep.trial_errors()
found["load"] = seen()
sweep.trials
print({name: modules for name, modules in found.items() if modules}, seen())
"""


def test_reading_a_sweep_imports_no_ray_or_torch_and_pandas_only_for_a_table(tmp_path):
    journal = session(tmp_path / "digits")
    trial(journal, "a", 0.5)
    (tmp_path / "digits/train_a/checkpoint_000001").mkdir(parents=True)
    python = [sys.executable, "-c", LOOK, str(tmp_path / "digits")]
    ran = subprocess.run(python, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().splitlines()[-1] == "{} ['pandas']"


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_no_module_imports_itself_through_others():
    known = {dotted(path) for path in MODULES}
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        own = [(m, name) for m, name in imports(path) if m.split(".")[0] == "tunekit"]
        inner = {f"{module}.{name}": module for module, name in own}
        graph[dotted(path)] = {one if one in known else module for one, module in inner.items()} - {
            dotted(path)
        }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_core_errors_and_messages_import_no_ray_file_or_clock():
    for path in (path for path in MODULES if room_of(path) in PURE):
        used = {module.split(".")[0] for module, _ in imports(path)}
        assert not used & OUTSIDE_FOR_PURE, path


def test_private_names_of_ray_are_imported_only_in_one_package():
    """What is read from an object there, ruff finds (SLF001)."""
    for path in (path for path in MODULES if room_of(path) != "_ray"):
        for module, name in imports(path):
            private = any(map(is_private, [*module.split("."), name]))
            assert not (module.startswith("ray") and private), f"{path}: {module}.{name}"


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


def test_subclasses_of_rays_classes_use_no_private_name_of_these():
    outside = (path for path in MODULES if room_of(path) != "_ray" and path.stem != "__main__")
    for module in (importlib.import_module(dotted(path)) for path in outside):
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                assert not rays_private_names_in(kind), kind


def test_public_names_are_sorted_and_known_to_type_checkers():
    assert tunekit.__all__ == sorted(tunekit.__all__, key=lambda n: (not n.isupper(), n))
    assert set(tunekit.__all__) == set(tunekit._HOME_OF) <= set(dir(tunekit))
    tree = ast.parse((ROOT / "__init__.py").read_text())
    types = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {(f"{one.module}", a.name) for one in types.body for a in one.names}
    assert seen == {
        *((home, name) for name, home in tunekit._HOME_OF.items()),
        *(("tunekit", name) for name in tunekit._SUBMODULES),
    }


# Each import is required: by a plain install, or by the extra that the import names -------------


CHECKOUT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser(inline_comment_prefixes=("#",))
SETUP.read(CHECKOUT / "setup.cfg")

#: Modules of a package that need more than the package itself does.
NEEDS_ALSO = {"ray.train.torch": "torch"}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def required(lines: str) -> set[str]:
    """The distributions that requirements name; an extra of this package stands for its own."""
    found: set[str] = set()
    for line in filter(None, map(str.strip, lines.splitlines())):
        match = re.match(r"([\w.-]+)(?:\[(.*?)\])?", line)
        assert match, line
        name, extras = normal(match[1]), match[2]
        if name == SETUP["metadata"]["name"]:
            for one in extras.split(","):
                found |= required(SETUP["options.extras_require"][one.strip()])
        else:
            found.add(name)
    return found


PLAIN = required(SETUP["options"]["install_requires"])


def brought_by(name: str) -> set[str]:
    """The distributions of an extra; none, if there is no such extra."""
    return required(SETUP["options.extras_require"].get(name, ""))


@cache
def distributions() -> dict[str, set[str]]:
    """The distributions that have a package, by its name."""
    known = packages_distributions()
    return {package: set(map(normal, names)) for package, names in known.items()}


class Import(NamedTuple):
    """A package that is imported, and the extras that the import stands under."""

    package: str
    line: int
    extras: frozenset[str]

    @property
    def distributions(self) -> set[str]:
        return distributions().get(self.package, {f"unknown: {self.package}"})


def imports_of(tree: ast.AST, under: frozenset[str] = frozenset()) -> Iterator[Import]:
    """What a piece of code imports that is neither its own nor Python's."""
    if isinstance(tree, ast.With):
        calls = [item.context_expr for item in tree.items]
        under |= {
            ast.literal_eval(call.args[0])
            for call in calls
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "extra"
        }
    names: list[str] = []
    if isinstance(tree, ast.Import):
        names = [alias.name for alias in tree.names]
    elif isinstance(tree, ast.ImportFrom) and not tree.level:
        names = [tree.module or ""]
    for name in names:
        package = name.split(".")[0]
        if package not in sys.stdlib_module_names:
            yield Import(package, tree.lineno, under)
        if name in NEEDS_ALSO:
            yield Import(NEEDS_ALSO[name], tree.lineno, under)
    for child in ast.iter_child_nodes(tree):
        yield from imports_of(child, under)


def imported(path: Path, own: set[str]) -> list[Import]:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        text = re.sub(r"^[%!].*$", "", text, flags=re.M)
    else:
        with tokenize.open(path) as file:
            text = file.read()
    return [one for one in imports_of(ast.parse(text)) if one.package not in own]


PACKAGE = [
    (str(path.relative_to(CHECKOUT)), one)
    for path in sorted((CHECKOUT / "tunekit").rglob("*.py"))
    for one in imported(path, {"tunekit"})
]


def test_every_import_of_the_package_is_required_by_the_install_or_its_extra():
    wrong = []
    for path, one in PACKAGE:
        brought = PLAIN.union(*map(brought_by, one.extras))
        if not one.distributions & brought:
            asked = " and ".join(sorted(one.extras)) or "a plain install"
            wrong.append(f"{path}:{one.line}: {one.package} is not required by {asked}")
    assert not wrong, "\n".join(wrong)


def test_every_requirement_of_a_plain_install_is_imported_without_an_extra():
    used = set().union(*(one.distributions for _, one in PACKAGE if not one.extras))
    assert used >= PLAIN


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("tests", "test"),
        ("notebooks", "notebook"),
        ("scripts", "demo"),
        ("docs/frameworks", "trainers"),
        ("docs/clusters", ""),
    ],
)
def test_every_import_of_tests_notebooks_scripts_and_docs_is_required_by_an_extra(folder, name):
    # Tests of these are skipped where they are not installed, and benchmarks leave two out; the
    # last two are this file's.
    may_lack = {"lightning", "transformers", "lightgbm", "gymnasium", "mlflow", "syne_tune"}
    may_lack |= {"benchmark_simulator", "no_such_package", "broken_package"}
    paths = sorted([*(CHECKOUT / folder).rglob("*.py"), *(CHECKOUT / folder).rglob("*.ipynb")])
    own = {"tunekit", "tests", "notebooks", "scripts", *(path.stem for path in paths)}
    brought = PLAIN | brought_by(name)
    for path in paths:
        for one in imported(path, own | may_lack):
            found = one.distributions & brought
            assert found, f"{path.name}:{one.line}: {one.package} is not in [{name}]"


def test_missing_package_raises_a_picklable_error_that_names_its_extra():
    with pytest.raises(MissingExtraError) as raised, extra("report"):
        import no_such_package.inner  # noqa: F401
    assert raised.value.name == "no_such_package"
    assert "pip install 'ray-tunekit[report]'" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))  # as a worker of Ray's sends it
    assert (str(again), again.name) == (str(raised.value), "no_such_package")


def test_import_error_of_an_installed_package_is_raised_unchanged(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libcudart.so.12')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="libcudart") as raised, extra("torch"):
        import broken_package  # noqa: F401
    assert not isinstance(raised.value, tunekit.errors.TunekitError)
