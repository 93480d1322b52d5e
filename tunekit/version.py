"""The version of tunekit."""

from __future__ import annotations

VERSION = "0.1.0"

#: The package's name for pip: on PyPI, ``tunekit`` is another project.
DISTRIBUTION = "ray-tunekit"
