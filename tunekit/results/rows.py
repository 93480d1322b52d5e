"""Write the files with a trial's rows as Tune's loggers write them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import EXPR_PROGRESS_FILE, EXPR_RESULT_FILE

from tunekit.core.metrics import flatten
from tunekit.core.values import admitted, as_json, writable
from tunekit.journal.storage import folder_at, replace_file


def write_rows(trial: Trial, rows: Sequence[Mapping[str, Any]], *, table: bool) -> None:
    """Write ``result.json`` anew, and ``progress.csv`` if there is a ``table``.

    Here, and in the storage, from which Tune's logger copies its table when the trial starts.
    """
    trial.init_local_path()
    lines = "".join(f"{as_json(row)}\n" for row in rows)
    files = {EXPR_RESULT_FILE: lines, **({EXPR_PROGRESS_FILE: _as_csv(rows)} if table else {})}
    stored = folder_at(trial.storage.storage_filesystem, trial.storage.trial_fs_path)
    for name, text in files.items():
        replace_file(Path(trial.local_path, name), text.encode())
        stored.put(name, text.encode())


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    own = ({key: value for key, value in row.items() if key != "config"} for row in rows)
    table = [flatten(admitted(row)) for row in own]
    columns = dict.fromkeys(name for row in table for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return writable(text.getvalue())
