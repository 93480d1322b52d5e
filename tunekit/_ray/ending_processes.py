"""The processes of trials that end before their trials do."""

from __future__ import annotations

from ray.tune.execution.tune_controller import TuneController

from tunekit._ray.cluster import ending_groups

# Spot nodes end at least 30 s after the notice.
_LOOK_S = 2.0


class EndingProcesses:
    """Find the trials that lose their processes, which no other trial may use.

    Args:
        tune: The sweep's controller.
        ended_hosts: The trials whose processes were ended by a validation.
    """

    def __init__(self, tune: TuneController, ended_hosts: set[str]):
        self._tune, self._ended_hosts = tune, ended_hosts
        self._next_look = 0.0
        #: The trials with resources on a node that is about to end.
        self.leaving: set[str] = set()

    def check(self, now: float) -> None:
        """Find the trials on nodes that are about to end, at most every 2 s."""
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        self.leaving.clear()
        if groups := ending_groups():
            self._tune._cleanup_cached_actors(force_all=True)  # no trial may start in one there
            for trial, actor in self._tune._trial_to_actor.items():
                acquired = self._tune._actor_manager.get_actor_resources(actor)
                if acquired is not None and acquired.placement_group.id.hex() in groups:
                    self.leaving.add(trial.trial_id)

    def pop(self, trial_id: str) -> bool:
        """Forget a trial that leaves its process; return whether that has ended or must end."""
        ends = trial_id in self.leaving or trial_id in self._ended_hosts
        self.leaving.discard(trial_id)
        self._ended_hosts.discard(trial_id)
        return ends
