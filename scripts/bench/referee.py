"""Check the virtual clock of the benchmarks against an independent one.

    python -m scripts.bench.referee    # needs mfhpo-simulator; some 2 minutes

mfhpo-simulator orders parallel evaluations by their measured durations. ASHA's rungs, as in Tune,
decide on the public curves of ``public.py``, with validation inline in each epoch: once on Tune's
controller in the virtual time of ``virtual.py``, and once by ask and tell, with six workers whose
order mfhpo-simulator determines. Both must train the same epochs of the same configurations, and
end at the same time. The exit status is 1 if they do not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from benchmark_simulator import AbstractAskTellOptimizer, ObjectiveFuncWrapper
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from scripts.bench.harness import arguments, quiet
from scripts.bench.public import ETA, EVALUATION_S, MAX_T, SLOTS, curves, draw
from scripts.bench.virtual import VirtualSweep

#: Longer than any sweep: a worker without a configuration is busy.
IDLE_S = 1e9


class Halving(AbstractAskTellOptimizer):
    """ASHA's rungs, asked for one epoch at a time."""

    def __init__(self, configurations: list[Any]):
        self._new, self._again = list(configurations), list[tuple[Any, int]]()
        self._rungs = _Bracket(1, MAX_T, ETA, 0)
        self._idle = 0
        #: What was trained, in order: (configuration, epoch).
        self.trained: list[tuple[Any, int]] = []

    def ask(self) -> tuple[dict[str, Any], dict[str, int], None]:
        """Return the epoch that a free worker trains: of its configuration, or of a new one."""
        if self._again:
            configuration, epoch = self._again.pop()
        elif self._new:
            configuration, epoch = self._new.pop(0), 1
        else:
            self._idle += 1
            configuration, epoch = -self._idle, 1
        return {"configuration": configuration}, {"epoch": epoch}, None

    def tell(
        self,
        eval_config: dict[str, Any],
        results: dict[str, float],
        *,
        fidels: dict[str, Any] | None,
        config_id: int | None = None,
    ) -> None:
        """Decide whether the configuration continues."""
        configuration, epoch = eval_config["configuration"], int((fidels or {})["epoch"])
        self.trained.append((configuration, epoch))
        trial = SimpleNamespace(trial_id=str(configuration))
        action = self._rungs.on_result(trial, epoch, -results["loss"])
        if epoch < MAX_T and action == TrialScheduler.CONTINUE:
            self._again.append((configuration, epoch + 1))


def refereed(table: pd.DataFrame, evaluations: int) -> tuple[set[tuple[Any, int]], float]:
    """Return what mfhpo-simulator trains, and when it ends, in seconds."""
    known = table.set_index(["trial", "training_iteration"])

    def evaluate(
        eval_config: dict[str, Any], fidels: dict[str, int], seed: int | None = None
    ) -> dict[str, float]:
        place = eval_config["configuration"], fidels["epoch"]
        if place not in known.index:
            return {"loss": 0.0, "runtime": IDLE_S}
        row = known.loc[place]
        return {"loss": -float(row.accuracy), "runtime": float(row.train_s) + EVALUATION_S}

    optimizer = Halving(list(table.trial.unique()))
    with tempfile.TemporaryDirectory() as folder:
        simulator = ObjectiveFuncWrapper(
            obj_func=evaluate,
            ask_and_tell=True,
            save_dir_name="sweep",
            n_workers=SLOTS,
            n_evals=evaluations,
            n_actual_evals_in_opt=evaluations + SLOTS,
            fidel_keys=["epoch"],
            expensive_sampler=True,
            tmp_dir=folder,
        )
        simulator.simulate(optimizer)
        ended = max(simulator.get_results()["cumtime"])
    return set(optimizer.trained), float(ended)


def virtual(table: pd.DataFrame) -> tuple[set[tuple[Any, int]], float]:
    """Return what Tune's controller trains in virtual time, and when it ends, in seconds."""
    sweep = VirtualSweep(
        table,
        ASHAScheduler(
            max_t=MAX_T, grace_period=1, reduction_factor=ETA, time_attr="training_iteration"
        ),
        train_s="train_s",
        validate_s="on_one_s",
        slots=SLOTS,
        inline="every",
    ).run()
    return {(one.trial, one.iteration) for one in sweep.scores}, sweep.now


def main() -> int:
    options = arguments(__doc__, orders=10, wheel="")
    quiet()
    everything, differ = curves(Path(options.wheel) if options.wheel else None), 0
    for seed in range(options.orders):
        table = draw(everything, seed)
        ours, ends = virtual(table)
        theirs, ended = refereed(table, len(ours))
        same = ours == theirs and abs(ends - ended) < 1e-3 * ends
        differ += not same
        print(
            f"order {seed}: {len(ours)} and {len(theirs)} epochs, {len(ours ^ theirs)} of them "
            f"only in one; {ends / 3600:.3f} h and {ended / 3600:.3f} h",
            flush=True,
        )
    print("The clocks agree." if not differ else f"They differ in {differ} orders.")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
