"""The version of tunekit, and a check for another project of the same name."""

from __future__ import annotations

from importlib import metadata

VERSION = "0.1.0"

#: The package's name for pip: on PyPI, ``tunekit`` is another project.
DISTRIBUTION = "ray-tunekit"


def of_another_project() -> str | None:
    """Return how to remove another project's ``tunekit``; None if it is not installed.

    Both projects write into one folder, so each overwrites, and removes, files of the other.

    Example:
        >>> of_another_project()  # None
    """
    try:
        version = metadata.version("tunekit")
    except metadata.PackageNotFoundError:
        return None
    return (
        f"The package tunekit {version} is also installed here. It is another project's, and "
        f"writes into the same folder as {DISTRIBUTION}, this one. Run: "
        f"pip uninstall -y tunekit {DISTRIBUTION} && pip install {DISTRIBUTION}"
    )
