"""Imports go downwards, only one package uses Ray's private names, and each import is required."""

from __future__ import annotations

import ast
import configparser
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
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
    for path in MODULES:
        if path.relative_to(ROOT).parts[0] in ("core", "errors.py", "messages"):
            used = {module.split(".")[0] for module, _ in imports(path)}
            assert not used & OUTSIDE_FOR_PURE, path


def test_private_names_of_ray_are_imported_only_in_one_package():
    """What is read from an object there, ruff finds (SLF001)."""
    for path in MODULES:
        if not path.is_relative_to(ROOT / "_ray"):
            names = [f"{module}.{name}" for module, name in imports(path)]
            assert not [name for name in names if re.match(r"ray\..*\b_(?!_|abc_)", name)], path


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


SETUP = configparser.ConfigParser(inline_comment_prefixes=("#",))
SETUP.read(ROOT.parent / "setup.cfg")

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


DISTRIBUTIONS = packages_distributions()


class Import(NamedTuple):
    """An import of a package that is neither tunekit nor Python's own."""

    where: str
    distributions: set[str]
    #: Those that it stands under.
    extras: frozenset[str]


def imports_of(path: Path, tree: ast.AST, extras: frozenset[str] = frozenset()) -> Iterator[Import]:
    """What a piece of code imports."""
    names: list[str] = []
    if isinstance(tree, ast.With):
        calls = [ast.unparse(item.context_expr) for item in tree.items]
        extras |= {call[len("extra('") : -2] for call in calls if call.startswith("extra(")}
    elif isinstance(tree, ast.Import):
        names = [alias.name for alias in tree.names]
    elif isinstance(tree, ast.ImportFrom):
        names = [tree.module or ""]
    for name in names:
        for package in (name.split(".")[0], NEEDS_ALSO.get(name, "tunekit")):
            if package not in {*sys.stdlib_module_names, "tunekit"}:
                found = set(map(normal, DISTRIBUTIONS.get(package, ["unknown"])))
                yield Import(f"{path.relative_to(ROOT)}:{tree.lineno}: {name}", found, extras)
    for child in ast.iter_child_nodes(tree):
        yield from imports_of(path, child, extras)


IMPORTS = [one for path in MODULES for one in imports_of(path, ast.parse(path.read_text()))]


def test_every_import_of_the_package_is_required_by_the_install_or_its_extra():
    wrong = [
        f"{one.where} is not required by {' and '.join(sorted(one.extras)) or 'a plain install'}"
        for one in IMPORTS
        if not one.distributions & PLAIN.union(*map(brought_by, one.extras))
    ]
    assert not wrong


def test_every_requirement_of_a_plain_install_is_imported_without_an_extra():
    assert set().union(*(one.distributions for one in IMPORTS if not one.extras)) >= PLAIN


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
