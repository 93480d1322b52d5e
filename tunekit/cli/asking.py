"""Asking something of a running sweep, and saying what has come of it."""

from __future__ import annotations

import json
from typing import Any

import click

from tunekit._ray.storage import absolute, storage_at
from tunekit.errors import ConfigError
from tunekit.journal.experiments import no_sweep, sweeps_below
from tunekit.journal.requests import Request, ask, in_words

__all__ = ["answer_of", "parsed"]


def parsed(text: str) -> dict[str, Any]:
    """Return the hyperparameters in a text of JSON.

    Raises:
        click.BadParameter: If it is no JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter('it is not a JSON object, such as {"lr": 0.003}')
    return found


def answer_of(path: str, request: Request) -> tuple[bool, str]:
    """Ask something of a running sweep; return whether it was refused, and the answer in words.

    Raises:
        tunekit.errors.ConfigError: If there is no sweep, or no driver runs it.
        OSError: If the storage fails.
    """
    where, (filesystem, home) = f"tunekit {request.action}", storage_at(absolute(path), None)
    if not sweeps_below(filesystem, home, deep=0):
        raise ConfigError(where, [f"path={path!r} {no_sweep(filesystem, home, path)}"])
    try:
        asked = ask(filesystem, home, request)
    except ValueError as error:
        raise ConfigError(where, [f"{error}. See what it does: tunekit status."]) from error
    return bool(asked and asked.refused), in_words(asked)
