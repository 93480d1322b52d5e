"""Imports of optional packages, each under the extra that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tunekit.errors import MissingExtraError
from tunekit.version import DISTRIBUTION


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import packages of an extra; if one is not installed, name the extra.

    Args:
        name: The extra, one of those in ``setup.cfg``.

    Raises:
        tunekit.errors.MissingExtraError: If a package is not installed. Other errors of an import
            are raised as they are.

    Example:
        >>> with extra("report"):
        ...     import no_such_package
        Traceback (most recent call last):
        tunekit.errors.MissingExtraError: no_such_package is not installed; the extra 'report'...
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        # Ray's own import errors have a text, but no name.
        package = None if error.name is None else error.name.split(".")[0]
        text = str(error).partition(". ")[0].rstrip(".")
        lacks = text if package is None else f"{package} is not installed"
        raise MissingExtraError(
            f"{lacks}; the extra {name!r} installs it. Run: pip install '{DISTRIBUTION}[{name}]'",
            name=package,
        ) from None
