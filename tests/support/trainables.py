"""Trainables of which the score is a function of the state, and how good they are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import RESULT_DUPLICATE

from tunekit._ray.asking import INQUIRY
from tunekit.core.inquiry import Inquiry

LENGTH = 9


def quality(index: int, iteration: int, seed: int = 0) -> float:
    """Return the score of a trial's weights: the longer it trained, the better, with noise."""
    draw = random.Random(f"{seed}/{index}/{iteration}")
    talent = random.Random(f"{seed}/{index}").random()
    return talent * iteration + draw.random()


class Counting(tune.Trainable):
    """Its state is the number of its iterations; it ends by itself after ``LENGTH`` of them."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0
        self.fail_at = config.get("fail_at")

    def step(self) -> dict[str, Any]:
        self.steps += 1
        if self.fail_at == self.steps and not self.iteration_was_restored():
            raise RuntimeError(f"fails at {self.steps}")
        return {"loss": 1.0 / self.steps, "done": self.steps >= LENGTH}

    def iteration_was_restored(self) -> bool:
        return self._restored

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.steps = checkpoint["steps"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True


#: What trials were told: ``(trial ID, iteration, [(iteration, status, score), ...])``.
ANSWERS: list[tuple[str, int, list[tuple[int, str, float | None]]]] = []


class Asking(Counting):
    """Asks for its scores after each of its reports, in the middle of an iteration."""

    inquiry = Inquiry(blocks=True)
    told: list[Any]

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.owes = False

    def step(self) -> dict[str, Any]:
        if self.owes:
            self.owes = False
            return {INQUIRY: self.inquiry, RESULT_DUPLICATE: True}
        if "told" in vars(self):
            self.heard(vars(self).pop("told"))
        result, self.owes = super().step(), True
        return result

    def heard(self, told: list[Any]) -> None:
        """Note what it was told."""
        answer = [
            (one.metrics["training_iteration"], one.status.value, one.metrics.get("accuracy"))
            for one in told
        ]
        ANSWERS.append((self.trial_id, self.steps, answer))


class Endless(Counting):
    """Like the class above, but never ends by itself."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "done": False}


class FailsOnce(Counting):
    """Fails when it is trained for the sixth time, and not again."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.fail_at = 6

    def iteration_was_restored(self) -> bool:
        mark = Path(self.logdir, "has-failed")
        again = mark.exists()
        mark.touch()
        return again
