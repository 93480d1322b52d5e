"""Read the step of a checkpoint from the name that its trainer gave it."""

from __future__ import annotations

import re
from functools import lru_cache

from tunekit.core.values import MOST

# The rule reads names in which each word is replaced by a letter for what it says: these, O for all
# others, and D for a decimal, which is a score. "epoch=3-val_loss=0.32" becomes "E=3-O_O=D".
_SAYS = {
    "S": "step timestep iter iteration itr update round ba",  # its number is the step
    "E": "epoch ep episode",  # its number is the step, if nothing else has one
    "N": "layer fold seed avg ave",  # its number is not the step
    "P": "rank shard part",  # nor is this one, and only the file of part 0 counts
    "C": "checkpoint ckpt chkpnt snapshot",  # these four say what it is
    "T": "state states params",
    "W": "model weights",
    "G": "global tokens unsharded",
    "B": "best last latest final",  # a copy
    "X": "optim optims optimizer optimizers optimizerg rng scheduler scaler replay buffer tmp temp "
    "vecnormalize data dataset predictions",  # unfinished, or not weights
    "Y": "custom random trainer training",  # not weights: random_states_0.pkl
    "F": "of",  # 00001-of-00002
    "Z": "opt",  # opt010000.pt, but not opt-125m
}
# Files that have weights, and those that may have anything.
_SUFFIXES = {
    "W": "ckpt chkpt checkpoint pt pth pyth th torch t7 d3 safetensors keras h5 hdf5 weights "
    "params pdparams caffemodel mdl eqx cbm ubj zip",
    "A": "bin pkl pickle joblib npz msgpack tar gz model index txt",
}
_LETTERS, _KINDS = (
    {word: letter for letter, words in table.items() for word in words.split()}
    for table in (_SAYS, _SUFFIXES)
)
_LETTERS |= {f"{word}s": letter for word, letter in _LETTERS.items() if letter in "SE"}
_SCALES = {"k": 10**3, "m": 10**6, "b": 10**9}

_TOKEN = re.compile(r"(?<![0-9])[0-9]+\.[0-9][0-9.]*(?<!\.)|(?<=[0-9])([kmb])(?![^\W_])|[^\W0-9_]+")
_BESIDE = re.compile(
    r"^[._]|^$|X|Y[-_][CTW]|[0-9][-_]F[-_][0-9]|P[-_]?0*[1-9]|^Z[-_]?[0-9]*$"
    r"|^C_[0-9]{4}-[0-9]{2}-[0-9]{2}_"  # Ray Train's, until it is registered
)
# A number after a word for what it counts, or before one that has no number after it.
_COUNT = (
    "(?:WORD[-_=.+ ]?|(?<![0-9])(?=[0-9]+[kmb]?[-_]?WORD(?![-_=.+ ]?[0-9])))"
    "([0-9]+)([kmb]?)(?![0-9A-DF-RT-Z])"
)
_STEP, _EPOCH = (re.compile(_COUNT.replace("WORD", letter)) for letter in "SE")
_ALONE = re.compile(r"(?<![=0-9BDEFNOPSXYZa-z])(?<![ESNP][-_=.+ ])([0-9]+)()(?![0-9A-Za-z])")

#: Why a name that looks like a checkpoint's has no step.
NO_STEP = "no step can be read from the name"
A_COPY = "the name says that it is a copy of another checkpoint"
TOO_LARGE = f"the number in the name is larger than {MOST}, so it is not a step"


@lru_cache(maxsize=65536)  # a folder is listed repeatedly
def read_name(name: str, pattern: str | None = None) -> tuple[int | None, str]:
    """Return the step in a name, or else why it has none if it looks like a checkpoint's.

    The number next to "step", "iter" or the like is the step, otherwise the number next to "epoch";
    without such a word, the only number, or the second of two (epoch and step). Numbers in words
    (resnet50), decimals and numbers after "=" do not count. A file needs a suffix for weights; a
    suffix for anything (.pkl), or none, also needs a word for what it is, such as "model". Copies
    ("best", "last") count only if they are kept for a score that is in the name.

    Args:
        name: The name of a file or a folder.
        pattern: A regular expression for the whole name, whose first group is the step. None: the
            names that known trainers use.

    Example:
        >>> names = ["checkpoint-500", "a_20_steps.zip", "epoch=3-step=400.ckpt", "7", "model.bin"]
        >>> [read_name(name)[0] for name in names]
        [500, 20, 400, 7, None]
        >>> read_name("best_epoch_3.pth")[0], read_name("run7-final", r"run(\\d+)-final")[0]
        (None, 7)
        >>> read_name("last.ckpt"), read_name("config.json")
        ((None, 'the name says that it is a copy of another checkpoint'), (None, ''))
    """
    step, why = _read(name.lower()) if pattern is None else (None, "")
    if pattern is not None and (found := re.fullmatch(pattern, name)) is not None:
        try:
            step = int(found[1])
        except (TypeError, ValueError):
            why = NO_STEP
    return (step, why) if step is None or 0 <= step <= MOST else (None, TOO_LARGE)


def _letter(token: re.Match[str]) -> str:
    return "D" if "." in token[0] else token[1] or _LETTERS.get(token[0], "O")


def _value(found: re.Match[str]) -> int:
    return int(found[1].lstrip("0")[:20] or 0) * _SCALES.get(found[2], 1)


def _read(name: str) -> tuple[int | None, str]:
    parts, kinds = name.split("."), set()
    while len(parts) > 1 and parts[-1] in _KINDS:
        kinds.add(_KINDS[parts.pop()])
    stem = re.sub(r"-v[0-9]+$", "", ".".join(parts))  # Lightning's version of a file
    says = _TOKEN.sub(_letter, re.sub(r"(?<=[-_])e(?=[0-9])", "epoch", stem))
    is_text = name.endswith(".txt") and not re.fullmatch("W[^A-Z]*", says)
    other_suffix = not kinds and re.search(r"\.(?![SE][0-9])[A-Z][0-9A-Zkmb]*$", says)
    if is_text or other_suffix or _BESIDE.search(says):
        return None, ""
    step, epoch, alone = _STEP.search(says), _EPOCH.search(says), list(_ALONE.finditer(says))
    others, found = re.search("[OYFZ]", says), step or epoch
    two = [epoch, *alone] if epoch else alone  # the epoch and the step
    if not (step or others) and len(two) == 2 and (kinds or re.search("[A-Z]", says)):
        found = two[1] if _value(two[0]) <= _value(two[1]) else epoch
    elif found:
        found = found if not others or kinds or "C" in says or (step and epoch) else None
    elif len(alone) == 1:
        weights = "W" in kinds or (kinds and re.search("[CTW]", says))
        if not others or weights or re.search("T[-_]?[0-9]+$", says):
            found = alone[0]
    if found and "B" in says:
        scored = "D" in says or re.search("[0-9]", says[found.end() :])
        found = found if scored and not re.search("B[^A-Z0-9]*$", says) else None
    if found:
        return _value(found), ""
    if "W" in kinds or ("C" in says and re.search("[0-9]", says)) or ("B" in says and not others):
        return None, A_COPY if "B" in says else NO_STEP
    return None, ""
