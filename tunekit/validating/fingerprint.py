"""Compute fingerprints of functions, which change with their code and the values they hold.

Functions and classes from a file are identified by their import path and the bytes of that file.
So a changed helper in the same file is noticed, but not one in another file, nor changes of data,
environment variables or package versions. Everything else in a function (the arguments of a
``functools.partial``, an object's attributes, a closure's values, a function from a notebook) is
identified by its pickle.

Equal functions may get different fingerprints: a set of texts, for example, has a different order
in each process. Different functions must not get equal ones.
"""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import cloudpickle


def fingerprint(*things: Any) -> str | None:
    """Return the fingerprint of functions and arguments; None if any cannot be pickled.

    Args:
        *things: Functions, classes, and any other values.

    Example:
        >>> import functools
        >>> half, third = (functools.partial(round, ndigits=n) for n in (2, 3))
        >>> fingerprint(half) == fingerprint(half), fingerprint(half) == fingerprint(third)
        (True, False)
        >>> fingerprint(fingerprint, {"batch": 1}) == fingerprint(fingerprint, {"batch": 2})
        False
        >>> fingerprint(x for x in "abc") is None
        True
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5)
    try:
        pickler.dump(things)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its parts can raise anything
        return None
    digest = hashlib.sha256(stream.getvalue())
    for file in sorted(pickler.files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def essence(fn: Any) -> str | None:
    """Return a text that identifies a function of ``__main__`` by its code, even once unpickled.

    A function of ``__main__`` is pickled as a whole, and has no file where it is unpickled, but the
    same code. The functions that it calls are not compared.

    Args:
        fn: A validation function.

    Returns:
        The text; None for a function of a module, a closure, an object or a class.

    Example:
        >>> essence(fingerprint) is None
        True
    """
    if not isinstance(fn, FunctionType) or fn.__module__ != "__main__" or fn.__closure__:
        return None
    # A text, because a pickle depends on whether equal parts are the same object.
    return repr((fn.__qualname__, _essence(fn.__code__), fn.__defaults__, fn.__kwdefaults__))


class _Pickler(cloudpickle.CloudPickler):
    """Pickle the import path of a function or class that is from a file, not its code."""

    def __init__(self, file: Any, protocol: int):
        super().__init__(file, protocol)
        #: The files of these functions and classes.
        self.files: set[Path] = set()
        self._inside: set[int] = set()

    def reducer_override(self, obj: Any) -> Any:
        if obj is not _from_file and isinstance(obj, (type, FunctionType)):
            file = _file_of(obj)
            if file is not None:
                self.files.add(file)
                where = (obj.__module__, obj.__qualname__)
                if _is_at(obj, *where):
                    return _from_file, where
                if isinstance(obj, FunctionType):
                    return _from_file, (*where, self._held(obj))
        return super().reducer_override(obj)

    def _held(self, function: FunctionType) -> Any:
        """Return the code and values of a function that was created by another function."""
        if id(function) in self._inside:  # it refers to itself
            return None
        self._inside.add(id(function))
        code = function.__code__
        if Path(code.co_filename).is_file():
            self.files.add(Path(code.co_filename))
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return _essence(code), cells, function.__defaults__, function.__kwdefaults__


def _from_file(module: str, name: str, held: Any = None) -> None:
    """Stand for a function or class from a file; the pickle is never opened."""


def _file_of(obj: Any) -> Path | None:
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    name = getattr(module, "__file__", None)
    path = Path(name) if name else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _is_at(obj: Any, module: str, name: str) -> bool:
    """Return whether an object can be imported by its module and name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is obj


def _essence(code: CodeType) -> tuple[Any, ...]:
    """Return a function's code and first line, without the parts that differ by process."""
    constants = [
        _essence(one)
        if isinstance(one, CodeType)
        else sorted(map(repr, one))
        if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]
    return code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, constants
