"""What is imported is required: by a plain install, or by the extra that the import names."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import json
import pickle
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import tunekit
from tunekit.errors import MissingExtraError, extra

ROOT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser(inline_comment_prefixes=("#",))
SETUP.read(ROOT / "setup.cfg")
EXTRAS = sorted(SETUP["options.extras_require"])

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
    known = importlib.metadata.packages_distributions()
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
    (str(path.relative_to(ROOT)), one)
    for path in sorted((ROOT / "tunekit").rglob("*.py"))
    for one in imported(path, {"tunekit"})
]


def test_what_the_package_imports_is_required():
    wrong = []
    for path, one in PACKAGE:
        brought = PLAIN.union(*map(brought_by, one.extras))
        if not one.distributions & brought:
            asked = " and ".join(sorted(one.extras)) or "a plain install"
            wrong.append(f"{path}:{one.line}: {one.package} is not required by {asked}")
    assert not wrong, "\n".join(wrong)


def test_a_plain_install_requires_nothing_that_only_an_extra_needs():
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
def test_what_is_beside_the_package_has_an_extra_that_brings_its_imports(folder, name):
    # Tests of these are skipped where they are not installed, and a benchmark leaves one out; the
    # last two are this file's.
    may_lack = {"lightning", "transformers", "lightgbm", "gymnasium", "mlflow", "syne_tune"}
    may_lack |= {"no_such_package", "broken_package"}
    paths = sorted([*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.ipynb")])
    own = {"tunekit", "tests", "notebooks", "scripts", *(path.stem for path in paths)}
    brought = PLAIN | brought_by(name)
    for path in paths:
        for one in imported(path, own | may_lack):
            found = one.distributions & brought
            assert found, f"{path.name}:{one.line}: {one.package} is not in [{name}]"


def test_a_missing_package_is_told_with_the_extra_that_brings_it():
    with pytest.raises(MissingExtraError) as raised, extra("report"):
        import no_such_package.inner  # noqa: F401
    assert raised.value.name == "no_such_package"
    assert "no_such_package is not installed" in str(raised.value)
    assert "pip install 'ray-tunekit[report]'" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))  # as a worker of Ray's sends it
    assert (str(again), again.name) == (str(raised.value), "no_such_package")


def test_another_error_of_a_package_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libcudart.so.12')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="libcudart") as raised, extra("torch"):
        import broken_package  # noqa: F401
    assert not isinstance(raised.value, tunekit.errors.TunekitError)
