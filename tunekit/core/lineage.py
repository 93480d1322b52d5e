"""The lineage of trials: which weights they got, and with which hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tunekit.core.events import Exploited


class Ancestry:
    """The exploits of a sweep.

    Args:
        exploits: The exploits so far, in order.

    Example:
        >>> def exploit(trial_id, donor_id, donor_generation, iteration, config):
        ...     return Exploited(
        ...         trial_id=trial_id, generation=1, reached=iteration, donor_id=donor_id,
        ...         donor_generation=donor_generation, iteration=iteration, checkpoint="c",
        ...         donor_config={"lr": 1}, config=config,
        ...     )
        >>> ancestry = Ancestry([exploit("b", "a", 0, 4, {"lr": 2})])
        >>> ancestry.add(exploit("c", "b", 1, 8, {"lr": 3}))
        >>> ancestry.generation("c"), ancestry.generation("a")
        (1, 0)
        >>> [(e.donor_id, e.iteration) for e in ancestry.line("c")]
        [('a', 4), ('b', 8)]
        >>> ancestry.configs["c", 0], ancestry.configs["c", 1]
        ({}, {'lr': 3})
        >>> ancestry.schedule("c")
        [(0, {'lr': 1}), (4, {'lr': 2}), (8, {'lr': 3})]
    """

    def __init__(self, exploits: Iterable[Exploited] = ()) -> None:
        self._exploits: list[Exploited] = []
        self._begun: dict[tuple[str, int], Exploited] = {}
        self._generations: dict[str, int] = {}
        #: The hyperparameters of overwritten trials, by trial and generation.
        self.configs: dict[tuple[str, int], Mapping[str, Any]] = {}
        for exploit in exploits:
            self.add(exploit)

    def add(self, exploit: Exploited) -> None:
        """Record an exploit; the exploits of a trial come in the order of its generations."""
        self._exploits.append(exploit)
        self._begun[exploit.trial_id, exploit.generation] = exploit
        self.configs.setdefault((exploit.trial_id, exploit.generation - 1), exploit.old_config)
        self.configs[exploit.trial_id, exploit.generation] = exploit.config
        self._generations[exploit.trial_id] = exploit.generation

    def generation(self, trial_id: str) -> int:
        """Return the number of times the trial was overwritten."""
        return self._generations.get(trial_id, 0)

    def line(self, trial_id: str, generation: int | None = None) -> list[Exploited]:
        """Return the exploits that led to a trial's weights, oldest first.

        Args:
            trial_id: The trial.
            generation: One of its generations; the newest by default.

        Raises:
            KeyError: If the trial has no such generation.
        """
        at = (trial_id, self.generation(trial_id) if generation is None else generation)
        line: list[Exploited] = []
        exploit = self._begun[at] if at[1] > 0 else None
        while exploit is not None and len(line) < len(self):  # a forged journal may have a circle
            line.append(exploit)
            exploit = self._begun.get((exploit.donor_id, exploit.donor_generation))
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

    def __iter__(self) -> Iterator[Exploited]:
        return iter(self._exploits)

    def __len__(self) -> int:
        return len(self._exploits)
