"""The fingerprint of a function tells it from every other one, and from its own former self."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tunekit.validating.fingerprint import essence, fingerprint

ONE, OTHER = lambda checkpoint: {"a": 1}, lambda checkpoint: {"a": 2}


def plain(checkpoint: Any) -> dict[str, Any]:
    return {}


def made(value: Any) -> Any:
    def inner(checkpoint: Any) -> dict[str, Any]:
        return {"value": value}

    return inner


def decorated(value: Any) -> Any:
    @functools.wraps(plain)
    def inner(checkpoint: Any) -> dict[str, Any]:
        return {"value": value}

    return inner


def class_made(value: Any) -> Any:
    class Evaluator:
        def __call__(self, checkpoint: Any) -> dict[str, Any]:
            return {"value": value}

    return Evaluator


class Calls:
    def __init__(self, function: Any):
        self.function = function

    def __call__(self, checkpoint: Any) -> Any:
        return self.function(checkpoint)


def of_itself() -> Any:
    def inner(checkpoint: Any) -> Any:
        return inner

    return inner


def test_functions_that_differ_have_different_fingerprints():
    things = [
        plain,
        ONE,
        OTHER,
        made(1),
        made(2),
        decorated(1),
        decorated(2),
        class_made(1),
        class_made(2),
        Calls,
        Calls(plain),
        Calls(made(1)),
        functools.partial(plain, batch=1),
        functools.partial(plain, batch=2),
        of_itself(),
        len,
    ]
    found = [fingerprint(thing) for thing in things]
    assert None not in found and len(set(found)) == len(things)
    assert found == [fingerprint(thing) for thing in things]


def test_arguments_are_part_of_it():
    assert fingerprint(plain, {"n": 1}) != fingerprint(plain, {"n": 2})
    assert fingerprint(plain, {"n": plain}) != fingerprint(plain, {"n": ONE})


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of a name, and return it imported anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, text: str) -> types.ModuleType:
        Path(tmp_path, f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in ("of_a_test", "a_helper"):
        sys.modules.pop(name, None)


FUNCTION = "def helper():\n    return {}\n\ndef validate(checkpoint):\n    return {}\n"


def test_a_helper_in_the_same_file_counts(module):
    one = fingerprint(module("of_a_test", FUNCTION).validate)
    assert fingerprint(module("of_a_test", FUNCTION).validate) == one
    changed = FUNCTION.replace("    return {}\n\n", "    return {1: 2}\n\n")
    assert fingerprint(module("of_a_test", changed).validate) != one


def test_a_helper_in_another_file_does_not_which_the_documents_say(module):
    module("a_helper", "def helper():\n    return 1\n")
    imports = "from a_helper import helper\n" + FUNCTION
    one = fingerprint(module("of_a_test", imports).validate)
    module("a_helper", "def helper():\n    return 2\n")
    assert fingerprint(module("of_a_test", imports).validate) == one


def test_what_an_argument_is_made_of_counts(module):
    one = fingerprint(Calls(module("a_helper", "def helper(c):\n    return 1\n").helper))
    assert fingerprint(Calls(module("a_helper", "def helper(c):\n    return 2\n").helper)) != one


def test_a_function_without_a_file_is_taken_as_a_whole():
    def notebook(text: str) -> Any:
        cells = types.ModuleType("of_a_notebook")
        sys.modules["of_a_notebook"] = cells
        exec(text, cells.__dict__)
        del sys.modules["of_a_notebook"]  # as of __main__, Ray sends it whole
        return cells.validate

    text = "def validate(c):\n    return helper()\n\ndef helper():\n    return %d\n"
    assert fingerprint(notebook(text % 1)) != fingerprint(notebook(text % 2))


def test_what_cannot_be_pickled_has_none():
    assert fingerprint(functools.partial(plain, (x for x in "abc"))) is None


def test_another_process_finds_the_same():
    program = (
        "from tests.unit import test_fingerprint as t; import functools as f; "
        "print(t.fingerprint(f.partial(t.plain, n=1), t.Calls(t.made({'a': 1})), t.ONE))"
    )
    here = fingerprint(functools.partial(plain, n=1), Calls(made({"a": 1})), ONE)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == here, done.stderr


PROGRAM = """
import base64, cloudpickle, pickle, sys
from tunekit.validating.fingerprint import essence

def validate(checkpoint, resume=(), *, batch={batch}):
    for n in range(3):
        yield {{"accuracy": (lambda value: value in {{1, 2, "a"}})(n), "accuracy_n": n}}

def other(checkpoint):
    return {{"accuracy": 0.5}}

print(essence(validate))
print(essence(other))
print(base64.b64encode(cloudpickle.dumps(validate)).decode())
"""


def said(program: str) -> list[str]:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not ran.returncode, ran.stderr
    return ran.stdout.splitlines()


def test_a_function_of_the_main_program_is_known_where_it_is_unpickled():
    own, other, pickled = said(PROGRAM.format(batch=1))
    [there] = said(
        "import base64, pickle; from tunekit.validating.fingerprint import essence; "
        f"print(essence(pickle.loads(base64.b64decode({pickled!r}))))"
    )
    assert there == own != other
    assert said(PROGRAM.format(batch=2))[0] != own
    assert essence(plain) is None and essence(len) is None
