"""What trials do while scores are pending, and how they share the cluster with validations."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from tunekit.core.shares import Shares

_APART = {"validating": 1.0}


class Mode(Enum):
    """Trials wait or continue; validations run where trials run, or beside them.

    Attributes:
        on_pending: As for ``ValidationConfig``.
        reuse_actors: As for ``TuneConfig``.
        shares: How trials and validations share the cluster.
        need: What a validation needs, if trials never have it.
    """

    AUTO = ("auto",)
    AUTO_BESIDE = ("auto", False, Shares(apart=True, dedicated=True))  # on resources of their own
    WAIT = ("wait",)
    WAIT_REUSED = ("wait", True)
    WAIT_PAUSED = ("wait", False, Shares(exclusive=True), _APART)  # a trial or a validation runs
    CONTINUE = ("continue",)
    CONTINUE_REUSED = ("continue", True)

    def __init__(
        self,
        on_pending: Literal["auto", "wait", "continue"],
        reuse_actors: bool = False,
        shares: Shares | None = None,
        need: dict[str, float] | None = None,
    ):
        self.on_pending, self.reuse_actors = on_pending, reuse_actors
        self.shares, self.need = shares or Shares(), need

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


#: Those in which every scheduler runs.
MODES = [mode for mode in Mode if mode is not Mode.CONTINUE_REUSED]
