"""The version of tunekit, and what else has its name."""

from __future__ import annotations

from importlib import metadata

__all__ = ["DISTRIBUTION", "VERSION", "of_another_project"]

VERSION = "0.1.0"

#: What pip calls tunekit: the name ``tunekit`` on the package index is another project's.
DISTRIBUTION = "ray-tunekit"


def of_another_project() -> str | None:
    """Return what to do about the other project's ``tunekit`` here; None if it is not installed.

    Both projects write into one folder, so each overwrites, and removes, files of the other.

    Example:
        >>> of_another_project()  # None
    """
    try:
        version = metadata.version("tunekit")
    except metadata.PackageNotFoundError:
        return None
    return (
        f"The package tunekit {version} is installed here, too. It is another project's, and "
        f"writes into the same folder as {DISTRIBUTION}, which is this one. Run: "
        f"pip uninstall -y tunekit {DISTRIBUTION} && pip install {DISTRIBUTION}"
    )
