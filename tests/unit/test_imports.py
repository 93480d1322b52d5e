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

OUTSIDE_FOR_PURE = {"ray", "torch", "pandas", "numpy", "optuna", "tensorboard", "os", "io", "time"}


def modules(*rooms: str, others: bool = False) -> list[Path]:
    """The modules in these folders and files of the package, or all ``others``."""

    def room(path: Path) -> str:
        return path.relative_to(ROOT).parts[0].removesuffix(".py")

    return [path for path in MODULES if (room(path) in rooms) is not others]


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


def test_core_errors_and_messages_import_no_ray_file_or_clock():
    for path in modules("core", "errors", "messages"):
        used = {module.split(".")[0] for module, _ in imports(path)}
        assert not used & OUTSIDE_FOR_PURE, path


def test_private_names_of_ray_are_imported_only_in_one_package():
    """What is read from an object there, ruff finds (SLF001)."""
    for path in modules("_ray", others=True):
        for module, name in imports(path):
            private = any(map(is_private, [*module.split("."), name]))
            assert not (module.startswith("ray") and private), f"{path}: {module}.{name}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_abc_"))


def own_private_names(kind: type) -> set[str]:
    """Private names that a class has, or gets and sets in itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except OSError:  # one that a decorator has made
        tree = ast.Module([], [])
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    used = {n.attr for n in nodes if ast.unparse(n.value) in ("self", "cls", "super()")}
    return set(filter(is_private, used | set(vars(kind))))


def test_subclasses_of_rays_classes_use_no_private_name_of_these():
    for path in modules("_ray", "__main__", others=True):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                theirs = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "ray"]
                rays = set().union(*map(own_private_names, theirs))
                assert not own_private_names(kind) & rays, kind


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
    for name, extras in re.findall(r"^([\w.-]+)(?:\[(.*?)\])?", lines.strip(), re.M):
        if name == SETUP["metadata"]["name"]:
            found = found.union(*map(brought_by, extras.split(",")))
        else:
            found.add(normal(name))
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
        calls = [ast.unparse(item.context_expr) for item in tree.items]
        under |= {call[len("extra('") : -2] for call in calls if call.startswith("extra(")}
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
