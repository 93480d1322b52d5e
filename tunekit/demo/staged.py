"""The demonstration's way to validate less: in batches, in stages, with a confirmed winner."""

from __future__ import annotations

import tunekit
from tunekit.core.words import confirmation_in_words
from tunekit.demo import digits

__all__ = ["in_stages", "staged_validation"]

_TOP = 3


def staged_validation(on_pending: str = "auto") -> tunekit.ValidationConfig:
    """Return how checkpoints are validated: in batches; promoted ones also by another function.

    At the end, the winner is confirmed.

    Args:
        on_pending: As in :class:`tunekit.ValidationConfig`.

    Example:
        >>> [stage.name for stage in staged_validation().stages], staged_validation().confirm.top
        (['plain'], 3)
    """
    return tunekit.ValidationConfig(
        fn=digits.validate_in_batches,
        on_pending=on_pending,
        sequential=tunekit.Sequential(min_examples=300),
        stages=[tunekit.Stage("plain", digits.validate, every="promoted")],
        confirm=tunekit.Confirm(top=_TOP),
    )


def in_stages(sweep: tunekit.Sweep) -> list[str]:
    """Say how many images the sweep took, what was validated besides, and how sure the winner is.

    Args:
        sweep: A sweep that was validated by :func:`staged_validation`.
    """
    table = sweep.validations
    scored = table[table.status == "validated"]
    decided, plain = scored[scored.stage == ""], scored[scored.stage == "plain"]
    seen, all_ = int(decided["metrics/accuracy_n"].sum()), len(decided) * digits.EXAMPLES
    lines = [
        "Validated in stages:",
        f"  to decide  {seen:,} images, where full validations take {all_:,}: {seen / all_:.0%}",
        "             (8 in 9 of them are moved by a pixel, which is hard)",
    ]
    if len(plain):
        best = plain["metrics/accuracy"].max()
        lines.append(
            f"  promoted   {len(plain)} checkpoints were right on up to {best:.2%} of images that "
            "are not moved"
        )
    found = sweep.confirmation
    if found is not None:
        more = sum(one.n or 0 for one in found.candidates)
        lines += [
            f"  confirmed  {confirmation_in_words(found)},",
            f"             by {more:,} images",
        ]
    return lines
