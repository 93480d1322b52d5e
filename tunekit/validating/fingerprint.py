"""The fingerprint of a function: it changes when the function's code or what it holds does.

Functions and classes that were written in a file are taken by their import path and the bytes of
that file. So a changed helper in the same file is noticed; one in another file is not, nor are
data, environment variables or the versions of packages. Whatever else belongs to the function (the
arguments of a ``functools.partial``, an object's attributes, what a closure holds, and a function
that was written in a notebook) is taken by its pickle.

Two that differ may have different fingerprints for no good reason, such as sets of texts, whose
order is another one in each process. The opposite is what must not happen.
"""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

__all__ = ["essence", "fingerprint"]


def fingerprint(*things: Any) -> str | None:
    """Return the fingerprint of functions and arguments; None if one of them has no pickle.

    Args:
        *things: Functions, classes, and values of any kind.

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
    except BaseException:  # whatever its parts raise
        return None
    digest = hashlib.sha256(stream.getvalue())
    for file in sorted(pickler.files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def essence(fn: Any) -> str | None:
    """Return what a function of the program itself does, also if it was pickled in between.

    A function of ``__main__`` is pickled as a whole, and belongs to no file where it is unpickled.
    Its code is the same there. The functions that it calls are not looked at.

    Args:
        fn: A validation function.

    Returns:
        None if it is something else: a function of a module, a closure, an object, a class.

    Example:
        >>> essence(fingerprint) is None
        True
    """
    if not isinstance(fn, FunctionType) or fn.__module__ != "__main__" or fn.__closure__:
        return None
    # As a text: which equal parts are one object differs between the two, and so do their pickles.
    return repr((fn.__qualname__, _essence(fn.__code__), fn.__defaults__, fn.__kwdefaults__))


class _Pickler(cloudpickle.CloudPickler):
    """Writes where a function or class is from, rather than what it does, if it is from a file."""

    def __init__(self, file: Any, protocol: int):
        super().__init__(file, protocol)
        #: The files of what was met.
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
        """Return what tells a function from others of its name: another function has made it."""
        if id(function) in self._inside:  # it holds itself
            return None
        self._inside.add(id(function))
        code = function.__code__
        if Path(code.co_filename).is_file():
            self.files.add(Path(code.co_filename))
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return _essence(code), cells, function.__defaults__, function.__kwdefaults__


def _from_file(module: str, name: str, held: Any = None) -> None:
    """Stand in a pickle that is never opened for a function or class that is from a file."""


def _file_of(obj: Any) -> Path | None:
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    name = getattr(module, "__file__", None)
    path = Path(name) if name else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _is_at(obj: Any, module: str, name: str) -> bool:
    """Return whether a function or class is what its import path leads to."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is obj


def _essence(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, and where it is written, without what differs by process."""
    constants = [
        _essence(one)
        if isinstance(one, CodeType)
        else sorted(map(repr, one))
        if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]
    return code.co_firstlineno, code.co_code, code.co_names, code.co_varnames, constants
