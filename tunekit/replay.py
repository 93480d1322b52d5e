"""Does again, from the journal, what a sweep did after its state was saved last.

Tune's trials, the searcher, and the books of tunekit and the scheduler may each have been saved at
another time: an event is told to those that have not heard of it. The scheduler is told in the
order of the journal, decides again, and is overruled where it has decided otherwise before: a
decision that was recorded may have been carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT

from tunekit._ray.checkpoints import take_saved
from tunekit._ray.controller import Controller
from tunekit._ray.judged import Version
from tunekit._ray.storage import exists
from tunekit.core.history import GENERATION, ITERATION, History
from tunekit.core.lineage import Ancestry, configs_of
from tunekit.core.metrics import hide
from tunekit.core.order import InOrder, Told
from tunekit.core.validation import Outcome, Request, Status
from tunekit.journal import as_known, exploits_of
from tunekit.judges import JudgingScheduler

if TYPE_CHECKING:
    from tunekit.callback import ValidationCallback

__all__ = ["Replay", "retold"]

logger = logging.getLogger(__name__)


def retold(
    events: Iterable[Mapping[str, Any]], trials: Mapping[str, Trial], ancestry: Ancestry
) -> tuple[dict[str, list[Told]], InOrder]:
    """What loggers were told of each trial before the sweep was interrupted, and what waits.

    A result counts as told as soon as it might have been: nobody hears of it twice.

    Args:
        events: The journal.
        trials: The trials; events of others are left out.
        ancestry: The exploits, which change hyperparameters.
    """
    configs, order, history = configs_of(ancestry), InOrder(), History()
    told: dict[str, list[Told]] = {}
    reports: dict[str, Mapping[str, Any]] = {}
    requests: dict[str, Request] = {}
    for event in events:
        kind, request_id = event["event"], event.get("id", "")
        trial = trials.get(event.get("trial_id") or request_id.rsplit(":", 3)[0])
        if trial is None:
            continue
        trial_id = trial.trial_id
        if kind == "reported":
            report = event["report"]
            generation = report.get(GENERATION, 0)
            config = configs.get((trial_id, generation))
            config = trial.config if config is None else as_known(config, [trial.config])
            reports[trial_id] = {**report, "config": config}
            history.reported(trial_id, report[ITERATION], generation)
            told.setdefault(trial_id, []).append(Told(reports[trial_id]))
        elif kind == "saved":
            place = {name: event[name] for name in ("iteration", "run", "generation")}
            known = reports.get(trial_id, {"config": trial.config})
            report = {"config": known["config"], **(event.get("report") or known)}
            requests[request_id] = Request(trial_id, **place, report=report)
        elif kind == "requested" and request_id in requests:
            order.requested(requests[request_id])
        elif kind == "ended" and request_id in requests:
            status, metrics = Status(event["status"]), event["metrics"]
            outcome = Outcome(requests[request_id], status, metrics)
            history.ended(outcome)
            for due in order.ended(outcome):
                if history.counts(due):
                    told.setdefault(trial_id, []).append(Told(due.request.report, due.metrics))
    for trial_id, own in told.items():
        told[trial_id] = [replace(one, report=hide(one.report, history.names)) for one in own]
    return told, order


class Replay:
    """Tells the parts of a restored sweep what has happened since they were saved.

    Args:
        books: The sweep's validations.
        controller: The restored experiment.
        scheduler: The scheduler.
        trials: The trials that it has.
        books_as_of: The number of the line of the journal as of which the books are.
        trials_as_of: That as of which the trials are.
        search_as_of: That as of which the searcher is.
    """

    def __init__(
        self,
        books: ValidationCallback,
        controller: Controller,
        scheduler: JudgingScheduler,
        *,
        trials: Mapping[str, Trial],
        books_as_of: int,
        trials_as_of: int,
        search_as_of: int,
    ):
        self._books, self._controller, self._scheduler = books, controller, scheduler
        self._trials = trials
        self._books_as_of, self._trials_as_of = books_as_of, trials_as_of
        self._search_as_of = search_as_of
        self._reports: dict[str, Mapping[str, Any]] = {}
        self._saved: dict[str, Request] = {}
        self._owed: dict[str, Request] = {}
        self._failed: set[str] = set()
        self._configs: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._known_configs: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._odd: dict[str, Any] = {}
        self._versions: dict[tuple[str, int, int], Request] = {}
        self._scores: dict[tuple[str, int, int], Mapping[str, Any]] = {}

    def run(self, events: Sequence[Mapping[str, Any]]) -> tuple[list[Request], set[str]]:
        """Tell of all events, in order; those of trials that are no more are left out.

        Returns:
            What was saved, and was to be validated next; the trials that had failed, and were to be
            started again next.
        """
        self._configs = configs_of(exploits_of(events, self._books.places))
        for event in events:
            self._odd.update(event.get("odd") or {})
        count = 0
        for event in events:
            kind, number = event["event"], event["n"]
            trial = self._trials.get(event.get("trial_id") or event.get("id", "").rsplit(":", 3)[0])
            if trial is None:
                continue
            if kind in ("reported", "saved", "ended"):
                self._remember(kind, event, trial)
            if number > self._trials_as_of and kind in ("reported", "saved"):
                self._bring_forward(kind, event, trial)
            if number > self._search_as_of and kind in ("completed", "errored"):
                self._controller.tell_search_of_end(trial, failed=kind == "errored")
            if number > self._books_as_of:
                handle = getattr(self, f"_on_{kind}", None)
                if handle is not None:
                    handle(event, trial)
                    count += 1
        if count:
            logger.info("Restored what happened after the sweep was saved: %d events.", count)
        return list(self._owed.values()), self._failed

    # What is known of a checkpoint -------------------------------------------------------------

    def _remember(self, kind: str, event: Mapping[str, Any], trial: Trial) -> None:
        if kind == "reported":
            report = event["report"]
            config = self._config_of(trial, report.get(GENERATION, 0))
            self._reports[trial.trial_id] = {**report, "config": config}
        elif kind == "saved":
            request = self._request(event, trial)
            self._saved[request.id] = request
            self._versions[(trial.trial_id, *request.place)] = request
        elif event["status"] == Status.VALIDATED.value and event["id"] in self._saved:
            request = self._saved[event["id"]]
            self._scores[(trial.trial_id, *request.place)] = event["metrics"]

    def _request(self, event: Mapping[str, Any], trial: Trial) -> Request:
        report = {**(event.get("report") or self._reports.get(trial.trial_id, {}))}
        report.pop(SHOULD_CHECKPOINT, None)
        report.setdefault("config", trial.config)
        path = self._books.places.path(event["checkpoint"])
        return Request(
            trial_id=trial.trial_id,
            iteration=event["iteration"],
            run=event["run"],
            generation=event["generation"],
            checkpoint=tune.Checkpoint(path, trial.storage.storage_filesystem),
            path=path,
            report=report,
            kwargs=event["kwargs"],
            timeout_s=event["timeout_s"],
            config=self._config_of(trial, event["generation"]),
        )

    def _config_of(self, trial: Trial, generation: int) -> Mapping[str, Any]:
        """The hyperparameters of one of a trial's generations, with their very values."""
        of = (trial.trial_id, generation)
        if of not in self._configs:
            return trial.config
        if of not in self._known_configs:
            self._known_configs[of] = self._known(self._configs[of], trial)
        return self._known_configs[of]

    def _known(self, config: Mapping[str, Any], trial: Trial) -> Mapping[str, Any]:
        known: Mapping[str, Any] = as_known(config, [trial.config], self._odd)
        return known

    def _bring_forward(self, kind: str, event: Mapping[str, Any], trial: Trial) -> None:
        """Let Tune's trial be as far as it was."""
        if kind == "reported":
            report = self._reports[trial.trial_id]
            trial.update_last_result(dict(report))
            for policy in self._books.policies:
                policy.due(trial, report)
        else:
            for policy in self._books.policies:
                policy.saved(trial)
            request = self._saved[event["id"]]
            if exists(trial.storage.storage_filesystem, request.path):
                take_saved(trial, request.checkpoint, dict(request.report))
        self._controller.changed(trial)

    # What the books are told -------------------------------------------------------------------

    def _on_reported(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._scheduler.replay("reported", trial)
        report = self._reports[trial.trial_id]
        self._books.reported(trial, report, offered=event["offered"])

    def _on_saved(self, event: Mapping[str, Any], trial: Trial) -> None:
        request = self._saved[event["id"]]
        self._scheduler.used(request)
        if self._books.saved(trial, request, wish=event["wish"], used=event["used"]):
            self._owed[request.id] = request

    def _on_requested(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._owed.pop(event["id"], None)
        self._books.requested(trial, self._saved[event["id"]])

    def _on_ended(self, event: Mapping[str, Any], trial: Trial) -> None:
        request = self._books.unfinished(event["id"])
        if request is None:
            return
        known = {f.name: event[f.name] for f in fields(Outcome) if f.name in event}
        outcome = Outcome(**{**known, "request": request, "status": Status(event["status"])})
        self._books.ended(trial, outcome, again=True)

    def _on_delivered(self, event: Mapping[str, Any], trial: Trial) -> None:
        place = (event["generation"], event["iteration"])
        search = event["n"] > self._search_as_of
        self._scheduler.replay("delivered", trial)
        self._books.delivered(trial, place, event["decision"], search=search)
        self._scheduler.replay("judged", trial)

    def _on_decided(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._scheduler.replay("decided", trial)

    def _on_reminded(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._scheduler.replay("reminded", trial, decision=event["decision"])

    def _on_chosen(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._scheduler.replay("chosen", trial, runs=event["runs"])

    def _on_completed(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._scheduler.replay("completed", trial, removed=event["removed"])
        self._books.completed(trial.trial_id)

    def _on_finished(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._books.finished(trial, search=event["n"] > self._search_as_of)

    def _on_failed(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._failed.add(trial.trial_id)
        self._scheduler.replay("failed", trial)

    def _on_retried(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._failed.discard(trial.trial_id)
        self._scheduler.replay("retried", trial)
        self._books.retried(trial)

    def _on_errored(self, event: Mapping[str, Any], trial: Trial) -> None:
        self._failed.discard(trial.trial_id)
        self._books.errored(trial)

    def _on_exploited(self, event: Mapping[str, Any], trial: Trial) -> None:
        [recorded] = exploits_of([event], self._books.places)
        exploit = replace(
            recorded,
            old_config=self._known(recorded.old_config, trial),
            donor_config=self._known(recorded.donor_config, trial),
            config=self._known(recorded.config, trial),
        )
        place = (exploit.donor_id, exploit.donor_generation, exploit.iteration)
        saved = self._versions.get(place)
        version = None
        if saved is not None:
            version = Version(
                trial_id=exploit.donor_id,
                generation=exploit.donor_generation,
                iteration=exploit.iteration,
                checkpoint=saved.checkpoint,
                result=self._books.scored(saved, self._scores.get(place, {})),
                report=saved.report,
                config=exploit.donor_config,
            )
        known = {"exploit": exploit, "version": version}
        carried_out = event["n"] <= self._trials_as_of
        self._scheduler.replay("exploited", trial, **known, carried_out=carried_out)
