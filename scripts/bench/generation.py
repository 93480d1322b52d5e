"""Compare ways of validating by generating text, which takes longer than an epoch.

    python -m scripts.bench.generation                   # three rounds: some 30 minutes
    python -m scripts.bench.generation --write           # also puts the table into docs/index.md

Each trial really trains a small decoder from scratch, to sort letters. Its validation generates
answers to held-out questions, letter by letter, as evaluations of language models do, and counts
the letters that are right. On one core, it takes about twice as long as an epoch. Eight
configurations run under ASHA with rungs at 1, 2, 4 and 8 epochs.

Each sweep is a process with its own Ray, measured from its first to its last line: Ray's start, the
trials' processes, training, validation. All run in turn, each round beginning with another one.
*Test* is the share of right letters on other questions, with the checkpoint that the sweep ranks
first, after the time was taken.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch import nn

import tunekit
from scripts.bench import harness
from scripts.pages import put

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/index.md"
LETTERS, LENGTH = 16, 12
#: A question is letters and the end of the question; the answer has them in alphabetical order.
END = LETTERS
EPOCHS, STEPS, BATCH = 8, 20, 64
QUESTIONS = 1_000
RUNGS = (1, 2, 4, 8)
SPACE = {
    "lr": tune.grid_search([1.6e-3, 6.4e-3, 4e-4, 1e-4]),
    "width": tune.grid_search([64, 32]),
}
#: The sweeps: their names, when the trial itself validates, logical CPUs, trials at a time.
WAYS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "inline, in each epoch": (tuple(range(1, EPOCHS + 1)), 1, 1),
    "inline, at ASHA's rungs": (RUNGS, 1, 1),
    "tunekit": ((), 1, 1),
    "tunekit, and one core for validation": ((), 2, 1),
    "inline, at ASHA's rungs, two trials": (RUNGS, 2, 2),
    "tunekit, two trials": ((), 2, 2),
}


class Decoder(nn.Module):
    """A causal transformer with learned positions."""

    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS + 1, width)
        self.places = nn.Embedding(2 * LENGTH + 1, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next letters, (batch, length, letters)."""
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.letters(text) + self.places(torch.arange(length))
        return self.head(self.layers(hidden, mask, is_causal=True))


def drawn(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return questions, (rows, LENGTH + 1), and their answers, (rows, LENGTH)."""
    letters = torch.randint(LETTERS, (rows, LENGTH), generator=generator)
    ends = torch.full((rows, 1), END)
    return torch.cat([letters, ends], 1), letters.sort(1).values


def share_right(checkpoint: tune.Checkpoint, seed: int) -> float:
    """Generate answers to held-out questions; return the share of right letters."""
    torch.set_num_threads(1)
    with checkpoint.as_directory() as folder:
        saved = torch.load(Path(folder, "state.pt"), weights_only=True)
    model = Decoder(saved["width"])
    model.load_state_dict(saved["model"])
    model.eval()
    questions, answers = drawn(QUESTIONS, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        text = questions
        for _ in range(LENGTH):
            text = torch.cat([text, model(text)[:, -1:].argmax(2)], 1)
    return (text[:, LENGTH + 1 :] == answers).float().mean().item()


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    """Return the score of a checkpoint."""
    return {"right": share_right(checkpoint, seed=1)}


def train(config: dict[str, Any]) -> None:
    """Train a decoder; validate where ``config["at"]`` has the epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Decoder(config["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scores: dict[str, float] = {}
    for epoch in range(1, EPOCHS + 1):
        for _ in range(STEPS):
            questions, answers = drawn(BATCH, generator)
            logits = model(torch.cat([questions, answers[:, :-1]], 1))[:, LENGTH:]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "width": config["width"]}
            torch.save(state, Path(folder, "state.pt"))
            checkpoint = tune.Checkpoint.from_directory(folder)
            if epoch in config["at"]:
                scores = validate(checkpoint)
            tune.report({"loss": loss.item(), **scores}, checkpoint=checkpoint)


def sweep(way: str, storage: str) -> dict[str, float]:
    """Run a sweep; return its seconds, its epochs, and the test score of its best checkpoint."""
    at, cpus, trials = WAYS[way]
    began = time.monotonic()
    harness.start_ray(cpus)
    tuner: type[tune.Tuner] = tune.Tuner if at else tunekit.Tuner
    ours = {} if at else {"validation_config": tunekit.ValidationConfig(fn=validate)}
    results = tuner(
        train,
        param_space={**SPACE, "at": at},
        tune_config=tune.TuneConfig(
            metric="right",
            mode="max",
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=2),
            max_concurrent_trials=trials,
        ),
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
        **ours,
    ).fit()
    seconds = time.monotonic() - began
    best = results.get_best_result(scope="all")
    checkpoint = best.get_best_checkpoint("right", "max")
    epochs = sum(result.metrics["training_iteration"] for result in results)
    return {"seconds": seconds, "epochs": epochs, "test": share_right(checkpoint, seed=2)}


def measured(way: str) -> dict[str, float]:
    """Run a sweep in a process of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "scripts.bench.generation", "--run", way, "--storage", folder],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{way}: {found}", file=sys.stderr, flush=True)
    return found


def row(way: str, found: dict[str, list[dict[str, float]]]) -> str:
    """Return a row: medians, and each round's ratio to validation at the rungs, as many trials."""
    runs = found[way]
    other = "inline, at ASHA's rungs" + (", two trials" if way.endswith("two trials") else "")
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(runs, found[other], strict=True)]
    seconds, epochs, test = (
        harness.median(run[name] for run in runs) for name in ("seconds", "epochs", "test")
    )
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"| {way} | {seconds:.0f} | {each} | {epochs:.0f} | {test:.3f} |"


def main() -> None:
    asked = harness.arguments(__doc__, run="", storage="", rounds=3, write=False)
    if asked.run:
        print(json.dumps(sweep(asked.run, asked.storage)))
        return
    found = harness.in_turn(WAYS, measured, asked.rounds)
    heads = "| | seconds | to inline at the rungs, each round | epochs | test |"
    table = "\n".join([heads, "|---|---|---|---|---|", *(row(way, found) for way in WAYS)])
    print(table)
    if asked.write:
        put(PAGE, "generation.py", table)


if __name__ == "__main__":
    main()
