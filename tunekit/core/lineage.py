"""The lineage of trials: which weights they got, and with which hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ancestry", "Exploit", "configs_of"]


@dataclass(frozen=True)
class Exploit:
    """An exploit: a trial was overwritten with a checkpoint, its own or another trial's.

    Attributes:
        time: In seconds since the epoch.
        trial_id: The trial that was overwritten.
        generation: The new generation: 1 after the first exploit.
        reached: The iteration that the trial had reported last.
        donor_id: The trial that saved the checkpoint; the same one for a replayed schedule.
        donor_generation: The donor's generation at that time.
        iteration: The training iteration of the checkpoint, from which the trial continues.
        checkpoint: The checkpoint's path.
        score: The validation score by which the donor was chosen.
        old_config: The trial's previous hyperparameters.
        donor_config: The hyperparameters that the checkpoint was trained with.
        config: The trial's new hyperparameters.
    """

    time: float
    trial_id: str
    generation: int
    reached: int
    donor_id: str
    donor_generation: int
    iteration: int
    checkpoint: str
    score: float | None
    old_config: Mapping[str, Any] = field(repr=False)
    donor_config: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)


class Ancestry:
    """The exploits of a sweep.

    Example:
        >>> def exploit(trial, generation, donor, donor_generation, iteration, config):
        ...     configs = {"old_config": {}, "donor_config": {"lr": 1}, "config": config}
        ...     return Exploit(0.0, trial, generation, iteration, donor, donor_generation,
        ...                    iteration, "", 0.9, **configs)
        >>> ancestry = Ancestry()
        >>> ancestry.add(exploit("b", 1, "a", 0, 4, {"lr": 2}))
        >>> ancestry.add(exploit("c", 1, "b", 1, 8, {"lr": 3}))
        >>> ancestry.generation("c"), ancestry.generation("a")
        (1, 0)
        >>> [(e.donor_id, e.iteration) for e in ancestry.line("c")]
        [('a', 4), ('b', 8)]
        >>> ancestry.configs["c", 0], ancestry.configs["c", 1]
        ({}, {'lr': 3})
        >>> ancestry.schedule("c")
        [(0, {'lr': 1}), (4, {'lr': 2}), (8, {'lr': 3})]
    """

    def __init__(self) -> None:
        self._exploits: list[Exploit] = []
        self._begun: dict[tuple[str, int], Exploit] = {}
        self._generations: dict[str, int] = {}
        #: The hyperparameters of overwritten trials, by trial and generation.
        self.configs: dict[tuple[str, int], Mapping[str, Any]] = {}

    def add(self, exploit: Exploit) -> None:
        """Record an exploit; those of one trial in the order of its generations."""
        self._exploits.append(exploit)
        self._begun[exploit.trial_id, exploit.generation] = exploit
        self.configs.setdefault((exploit.trial_id, exploit.generation - 1), exploit.old_config)
        self.configs[exploit.trial_id, exploit.generation] = exploit.config
        self._generations[exploit.trial_id] = exploit.generation

    def generation(self, trial_id: str) -> int:
        """Return the number of times the trial was overwritten."""
        return self._generations.get(trial_id, 0)

    def line(self, trial_id: str, generation: int | None = None) -> list[Exploit]:
        """Return the exploits that led to a trial's weights, the oldest first.

        Args:
            trial_id: The trial.
            generation: One of its generations; the newest by default.

        Raises:
            KeyError: If the trial has no such generation.
        """
        at = (trial_id, self.generation(trial_id) if generation is None else generation)
        line: list[Exploit] = []
        while at[1] > 0:
            exploit = self._begun[at]
            line.append(exploit)
            at = (exploit.donor_id, exploit.donor_generation)
        return line[::-1]

    def schedule(
        self, trial_id: str, generation: int | None = None
    ) -> list[tuple[int, Mapping[str, Any]]]:
        """Return ``(iteration, config)`` pairs: the config used from each iteration on.

        It is empty for weights without an exploit, which were trained with one configuration.
        """
        line = self.line(trial_id, generation)
        if not line:
            return []
        return [(0, line[0].donor_config), *((e.iteration, e.config) for e in line)]

    def __iter__(self) -> Iterator[Exploit]:
        return iter(self._exploits)

    def __len__(self) -> int:
        return len(self._exploits)


def configs_of(exploits: Iterable[Exploit]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return the hyperparameters of overwritten trials, by trial and generation."""
    ancestry = Ancestry()
    for exploit in exploits:
        ancestry.add(exploit)
    return ancestry.configs
