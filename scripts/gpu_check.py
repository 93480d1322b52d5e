"""Check trials and validations on one GPU: where they run, what they survive and what they cost.

    python scripts/gpu_check.py                     # all checks, on a GPU: about six minutes
    python scripts/gpu_check.py --only hang time    # those whose names contain one of these words
    python scripts/gpu_check.py --cpu               # without CUDA, on a logical GPU of Ray

Each check is a process with its own Ray, a folder and a time limit, so one that hangs or crashes is
a row of the table like the others. ``--out`` writes each row to a file as well, as a line of JSON,
with the last lines of what a failed check has printed.

- ``place-...``: a trial and its validations share the GPU: in the trial's process; in two processes
  with half of the GPU each; in two processes that both request all of it.
- ``fault-...-trial`` and ``fault-...-elsewhere``: one validation runs out of GPU memory, fails an
  assertion in a kernel (after which its process cannot use the GPU any more), crashes, or hangs in
  a kernel. The trial must continue, and the validation must succeed in its second attempt.
- ``trainer``: population based training of a TorchTrainer with NCCL, validated in its process
  group. Clones must begin with the weights that were ranked.
- ``unnoticed-...``: with this technique, losses and weights must be the same bits with and without
  validations in the trial's process.
- ``memory``: the same, and GPU memory after a validation must be at most 5 % above that before it.
- ``time-...``: seconds of a sweep that validates inline, of the same sweep with tunekit relative to
  them, and of both with ``reuse_actors=True``. ``elsewhere`` has a fifth of the GPU for itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train, tune
from ray.tune.schedulers import PopulationBasedTraining

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tunekit  # noqa: E402
from tunekit.core.metrics import GENERATION  # noqa: E402
from tunekit.distributed import TrainerValidation  # noqa: E402

#: The environment variable without which checks use CUDA, and the one with a check's own folder.
WITHOUT_CUDA, FOLDER = "GPU_CHECK_WITHOUT_CUDA", "RAY_TMPDIR"
CUDA = WITHOUT_CUDA not in os.environ
DEVICE = "cuda" if CUDA else "cpu"
GB, MB = 2**30, 2**20
EPOCHS = 4
FAULT_AT = 2
#: The limit of a validation that may hang; its second attempt must start PyTorch and end within it.
TIMEOUT_S = 25 if CUDA else 60
#: The largest ratio of the seconds with tunekit to those with inline validation: one run is noisy.
MOST_TIMES = 1.25
#: How many checks run at once, and the seconds for each and for all of them: with and without CUDA.
LIMITS, LIMITS_WITHOUT = (5, 180, 465), (1, 600, 3600)


# Training and validation -------------------------------------------------------------------------


class Transformer(torch.nn.Module):
    """A classifier of token sequences."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed = torch.nn.Embedding(2048, width)
        layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = torch.nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.embed(tokens)).mean(1))


def network(kind: str) -> torch.nn.Module:
    """Return a small CNN, or a transformer of 20 million parameters."""
    nn = torch.nn
    if kind == "transformer":
        return Transformer(512, 6) if CUDA else Transformer(64, 2)
    widths = (3, 64, 128, 256) if CUDA else (3, 8, 16, 32)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.1), nn.Linear(16 * widths[-1], 10))


def batch(kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return made data, which can be learned."""
    draw = torch.Generator(DEVICE).manual_seed(seed)
    if kind == "transformer":
        shape = (16, 256) if CUDA else (8, 16)
        tokens = torch.randint(2048, shape, generator=draw, device=DEVICE)
        return tokens, tokens[:, 0] % 10
    x = torch.randn((256 if CUDA else 32, 3, 32, 32), generator=draw, device=DEVICE)
    return x, x.flatten(1)[:, :10].argmax(1)


class Run:
    """A network and its optimizer.

    Args:
        config: ``kind``: the network; ``seed``; ``lr``; ``steps``: batches in an epoch, and half as
            many in a validation; ``how``: a technique; ``ballast``: more GPU memory, in GB.
    """

    def __init__(self, config: dict[str, Any]):
        torch.manual_seed(config.get("seed", 0))
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.config, self.how, self.kind = config, config.get("how"), config.get("kind", "cnn")
        self.model = network(self.kind).to(DEVICE)
        if self.how == "channels-last":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.forward = torch.compile(self.model) if self.how == "compile" else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), config.get("lr", 0.05), 0.9)
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=self.how == "amp" and CUDA)
        size = int(config.get("ballast", 0) * GB)
        self.ballast = torch.ones(size, dtype=torch.uint8, device=DEVICE)
        self.graph: Any = None
        self.epochs = 0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss, in half precision where that is the technique."""
        half = torch.float16 if CUDA else torch.bfloat16
        with torch.autocast(DEVICE, half, enabled=self.how == "amp"):
            return torch.nn.functional.cross_entropy(self.forward(x), y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Train on a batch; return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def replay(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Train on a batch with a CUDA graph of :meth:`step`."""
        if self.graph is None:
            self.inputs = x.clone(), y.clone()
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self.step(*self.inputs)
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self.step(*self.inputs)
        for kept, new in zip(self.inputs, (x, y), strict=True):
            kept.copy_(new)
        self.graph.replay()
        return self.result

    def epoch(self) -> float:
        """Train for an epoch; return the last batch's loss."""
        self.model.train()
        step, steps = self.replay if self.how == "graphs" else self.step, self.config["steps"]
        for n in range(steps):
            loss = step(*batch(self.kind, 1 + self.epochs * steps + n))
        self.epochs += 1
        return loss.item()

    def accuracy(self) -> float:
        """Return the accuracy on other batches."""
        self.model.eval()
        right = torch.zeros((), device=DEVICE)
        half = torch.float16 if CUDA else torch.bfloat16
        with torch.no_grad(), torch.autocast(DEVICE, half, enabled=self.how == "amp"):
            for n in range(self.config["steps"] // 2):
                x, y = batch(self.kind, 1_000_000 + n)
                right += (self.forward(x).argmax(1) == y).float().mean()
        return right.item() / (self.config["steps"] // 2)

    def weights(self) -> str:
        """Return a hash of all weights and buffers."""
        state = self.model.state_dict().values()
        return hashlib.sha1(b"".join(one.cpu().numpy().tobytes() for one in state)).hexdigest()

    def save(self, folder: Path) -> None:
        state = {"optimizer": self.optimizer.state_dict(), "epochs": self.epochs}
        torch.save({"model": self.model.state_dict(), **state}, folder / "state.pt")

    def load(self, checkpoint: tune.Checkpoint) -> None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location=DEVICE)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs = state["epochs"]


def memory() -> dict[str, float]:
    """Return the GPU memory of this process and the whole GPU's, in MB."""
    if not CUDA:
        return {}
    free, total = torch.cuda.mem_get_info()
    own = {"reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated()}
    return {name: amount / MB for name, amount in {**own, "device": total - free}.items()}


def training(config: dict[str, Any]) -> None:
    """Train, and report what was computed and in which process."""
    run = Run(config)
    if checkpoint := tune.get_checkpoint():
        run.load(checkpoint)
    tunekit.checkpoint_with(run.save)
    after: dict[str, float] = {}
    while run.epochs < config.get("epochs", EPOCHS):
        metrics: dict[str, Any] = {"loss": run.epoch(), "trained_in": os.getpid()}
        if config.get("exact"):
            metrics.update(weights=run.weights(), before=memory(), after=after)
        tune.report(metrics)
        after = memory()


def validating_inline(config: dict[str, Any]) -> None:
    """Do what ``training`` does, but validate in the training loop, as with stock Tune."""
    run = Run(config)
    while run.epochs < config["epochs"]:
        metrics = {"loss": run.epoch(), "accuracy": run.accuracy()}
        with tempfile.TemporaryDirectory() as folder:
            run.save(Path(folder))
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def validate(checkpoint: tune.Checkpoint, *, fault: str = "") -> dict[str, Any]:
    """Return the accuracy of a checkpoint, and leave the process as training would not like it."""
    from torch.backends import cudnn  # cannot be pickled with this function

    context = tunekit.get_validation_context()
    if fault and (context.iteration, context.attempt) == (FAULT_AT, 1):
        FAULTS[fault]()
    run = Run({**context.config, "ballast": 2 * context.config.get("ballast", 0)})
    run.load(checkpoint)
    score = {"accuracy": run.accuracy(), "validated_in": os.getpid(), "during": memory()}
    if context.config.get("exact"):
        run.epoch()
        torch.manual_seed(7)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(False)
        cudnn.benchmark = True
    return score


# Faults ------------------------------------------------------------------------------------------


def run_out_of_memory(share: float = 1.0) -> None:
    """Take all memory of the GPU, or as much as this process may have."""
    if not CUDA:
        raise MemoryError("as on a GPU")
    torch.cuda.set_per_process_memory_fraction(share)
    taken = []
    while True:
        taken.append(torch.empty(GB, dtype=torch.uint8, device="cuda"))


def fail_in_kernel() -> None:
    """Read behind the end of a tensor: no kernel can run in this process any more."""
    torch.zeros(2, device="cuda")[torch.tensor([9], device="cuda")].item()


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    """Wait for a kernel that runs for minutes."""
    if CUDA:
        torch.cuda._sleep(10**12)
        torch.cuda.synchronize()
    time.sleep(600)


FAULTS: dict[str, Callable[[], None]] = {
    "memory": run_out_of_memory,
    "share": partial(run_out_of_memory, 0.3),
    "kernel": fail_in_kernel,
    "crash": crash,
    "hang": hang,
}


# Sweeps ------------------------------------------------------------------------------------------


class Skipped(Exception):
    """Why a check cannot run here."""


def sweep(
    name: str,
    trainable: Any,
    space: dict[str, Any],
    *,
    gpu: float = 0.0,
    validation_gpu: float = 0.0,
    stock: bool = False,
    validated: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[tune.ResultGrid, float]:
    """Run a sweep without failures; return its results and the seconds that it took.

    Args:
        name: The name of its folder.
        trainable: A function, or a trainer, which has its own resources.
        space: The search space.
        gpu: A trial's share of the GPU.
        validation_gpu: A validation's share of the GPU.
        stock: Whether stock Tune runs it.
        validated: Settings of the ``ValidationConfig``; None: there is no validation.
        **settings: Settings of the ``TuneConfig``.
    """
    if callable(trainable):
        trainable = tune.with_resources(trainable, {"cpu": 1, "gpu": gpu})
    amounts = {"num_gpus": validation_gpu} if validation_gpu else {"num_cpus": 0}
    config = {"fn": validate, "ray_remote_kwargs": amounts, **(validated or {})}
    more = {} if validated is None else {"validation_config": tunekit.ValidationConfig(**config)}
    metric, mode = ("accuracy", "max") if stock or more else ("loss", "min")
    began = time.monotonic()
    tuner = (tune if stock else tunekit).Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric=metric, mode=mode, **settings),
        run_config=tune.RunConfig(name=name, storage_path=os.environ[FOLDER], verbose=0),
        **more,
    )
    results = tuner.fit()
    assert not results.errors, "a trial failed: " + str(results.errors[0]).strip().split("\n")[-1]
    return results, time.monotonic() - began


def scored(results: tune.ResultGrid, reports: int) -> Any:
    """Return the reports of a sweep, all of which must have a score."""
    table = tunekit.load(results.experiment_path).reports
    scores = int(table["accuracy"].notna().sum())
    assert scores == len(table) == reports, f"{scores} scores for {len(table)} of {reports} reports"
    return table


def own(table: Any) -> int:
    """Return how many validations ran in the process that trained."""
    return int(table["validated_in"].isin({*table["trained_in"]}).sum())


# Checks ------------------------------------------------------------------------------------------


def place(where: str, share: float) -> str:
    """A trial and its validations request the same share of the GPU."""
    space, shares = {"steps": 20, "epochs": 3}, {"gpu": share, "validation_gpu": share}
    validated = {"where": where, "on_pending": "wait"}
    results, seconds = sweep("place", training, space, validated=validated, **shares)
    table = scored(results, 3)
    inside, processes = own(table), table.trained_in.nunique()
    assert bool(inside) == (where == "auto"), f"{inside} validations ran in the trial's process"
    return f"3 scores, {inside} in the trial, {processes} process(es), sweep {seconds:.0f} s"


def survive(fault: str, where: str) -> str:
    """One validation fails; the trial continues, and each checkpoint gets its score."""
    if fault == "kernel" and not CUDA:
        raise Skipped("needs CUDA")
    timeout_s = TIMEOUT_S if fault == "hang" else None
    limits = train.ValidationTaskConfig(fn_kwargs={"fault": fault}, timeout_s=timeout_s)
    validated = {"task_config": limits, "where": where, "when": 1}
    places = {"gpu": 0.5, "validation_gpu": 0.5}
    results, seconds = sweep("fault", training, {"steps": 20}, validated=validated, **places)
    table, read = scored(results, EPOCHS), tunekit.load(results.experiment_path)
    again = read.validations.query("attempts > 1").iteration.tolist()
    assert again == [FAULT_AT], f"the validations of {again} were repeated, not of {FAULT_AT}"
    assert not read.trials.failures.sum(), "a failure of the trial was counted"
    inside, processes = own(table), table.trained_in.nunique()
    return f"{EPOCHS} scores, {inside} in the trial, {processes} process(es), sweep {seconds:.0f} s"


def hyperparameters() -> dict[str, Any]:
    """Return a trial's configuration."""
    # A function that also uses torch.distributed could not be pickled: it has a module "config".
    return tunekit.get_validation_context().config


def loop(config: dict[str, Any]) -> None:
    """Train in a worker of a TorchTrainer."""
    run, began_with = Run(config), ""
    if checkpoint := train.get_checkpoint():
        run.load(checkpoint)
        began_with = run.weights()
    run.forward = torch.nn.parallel.DistributedDataParallel(run.model)
    while run.epochs < config["epochs"]:
        metrics = {"loss": run.epoch(), "weights": run.weights(), "began_with": began_with}
        metrics.update(trained_in=os.getpid(), backend=dist.get_backend())
        with tempfile.TemporaryDirectory() as folder:
            run.save(Path(folder))
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


def validation_loop(config: dict[str, Any]) -> dict[str, Any]:
    """Validate in the workers of a TorchTrainer."""
    run = Run(hyperparameters()["train_loop_config"])
    run.load(config["checkpoint"])
    right = torch.tensor(run.accuracy(), device=DEVICE)
    dist.all_reduce(right)
    return {"accuracy": right.item() / dist.get_world_size(), "validated_in": os.getpid()}


def trainer() -> str:
    """Population based training of two trials with one worker each."""
    from ray.train.torch import TorchConfig, TorchTrainer

    each, backend = {"CPU": 1, **({"GPU": 0.5} if CUDA else {})}, "nccl" if CUDA else "gloo"
    worker = train.ScalingConfig(num_workers=1, use_gpu=CUDA, resources_per_worker=each)
    settings = {"scaling_config": worker, "torch_config": TorchConfig(backend=backend)}
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        synch=True,  # else one trial may have ended before the other has a score
        hyperparam_mutations={"train_loop_config": {"lr": tune.uniform(0.02, 0.08)}},
    )
    space = {"lr": tune.grid_search([1e-6, 0.05]), "steps": 20, "epochs": 6}
    validated = {"fn": TrainerValidation(validation_loop, worker)}
    trials, space = TorchTrainer(loop, **settings), {"train_loop_config": space}
    results, seconds = sweep("trainer", trials, space, validated=validated, scheduler=pbt)
    read = tunekit.load(results.experiment_path)
    table, exploits = read.reports, read.lineage.to_dataframe()
    assert len(exploits), "no trial was cloned"
    assert {*table.backend} == {backend}, f"another backend than {backend} was used"
    weights = table.set_index(["trial_id", GENERATION, "training_iteration"])["weights"]
    for exploit in exploits.itertuples():
        ranked = weights[exploit.donor_id, exploit.donor_generation, exploit.iteration]
        is_clone = (table.trial_id == exploit.trial_id) & (table[GENERATION] == exploit.generation)
        began_with = {*table[is_clone].began_with[:1]}  # empty if it was overwritten at once
        assert began_with <= {ranked}, f"clone {exploit.trial_id} began with other weights"
    validations = table.dropna(subset="accuracy")
    inside = f"{own(validations)} of {len(validations)} validations in the process group"
    assert own(validations) >= 2, f"only {inside}"
    return f"{backend}: {len(exploits)} exact clones, {inside}, sweep {seconds:.0f} s"


def compared(**config: Any) -> Any:
    """Train with and without validations, with the same losses; return the validated reports."""
    space = {"steps": 20, "exact": True, "seed": 3, **config}
    alone, _ = sweep("alone", training, space, gpu=1)
    validated = {"where": "trial", "when": 1}
    results, _ = sweep("both", training, space, gpu=1, validation_gpu=1, validated=validated)
    table = scored(results, EPOCHS)
    assert own(table) >= EPOCHS - 1, f"only {own(table)} validations ran in the trial's process"
    for name in ("loss", "weights"):
        bare, ours = list(alone[0].metrics_dataframe[name]), list(table[name])
        assert bare == ours, f"{name} without validation: {bare}, with: {ours}"
    return table


def unnoticed(how: str) -> str:
    """A technique whose training must not notice validations."""
    if how == "graphs" and not CUDA:
        raise Skipped("needs CUDA")
    if how == "compile" and not (shutil.which("gcc") or shutil.which("cc")):
        raise Skipped("needs a C compiler")
    return (
        f"losses and weights are the same bits, the last loss is {compared(how=how).loss.iat[-1]}"
    )


def memory_released() -> str:
    """GPU memory before, during and after validations that take twice as much as training."""
    table = compared(ballast=2 if CUDA else 0.01)
    if not CUDA:
        return "losses are the same bits (memory: needs CUDA)"
    found, most = [], 0.0
    for kind in ("reserved", "allocated", "device"):
        before, during = (table[f"{when}/{kind}"].to_numpy()[:-1] for when in ("before", "during"))
        after = table[f"after/{kind}"].to_numpy()[1:]  # each is reported with the next loss
        more = max(after / before - 1)
        most = max(most, more)
        found.append(f"{kind} {before[-1]:.0f}, {during[-1]:.0f}, {after[-1]:.0f} ({more:+.1%})")
    figure = "MB before, during, after: " + "; ".join(found)
    assert most <= 0.05, figure
    return figure + "; losses are the same bits"


def timed(kind: str) -> str:
    """Four trials, two at once, whose checkpoints are all validated."""
    steps = {"cnn": 240, "transformer": 40}[kind] if CUDA else 10
    space = {"seed": tune.grid_search([1, 2, 3, 4]), "kind": kind, "epochs": 3, "steps": steps}
    # As a task, each would start a process: Ray ends those of tasks that use a GPU.
    evaluator = {"where": "elsewhere", "evaluators": 1}
    elsewhere = {"gpu": 0.4, "validation_gpu": 0.2, "validated": evaluator}
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "inline": (validating_inline, {"gpu": 0.5, "stock": True}),
        "defaults": (training, {"gpu": 0.5, "validation_gpu": 0.5, "validated": {}}),
        "elsewhere": (training, elsewhere),
    }
    took = {}
    for way, reuse in [*((one, False) for one in ways), ("inline", True), ("defaults", True)]:
        name, (function, settings) = f"{way}-{reuse}", ways[way]
        _, took[way, reuse] = sweep(name, function, space, reuse_actors=reuse, **settings)
    inline, reused = took["inline", False], took["inline", True]
    defaults, of_reused = took["defaults", False] / inline, took["defaults", True] / reused
    figure = (
        f"inline {inline:.1f} s, defaults {defaults:.2f} of it, elsewhere "
        f"{took['elsewhere', False] / inline:.2f}; reused: {reused:.1f} s, {of_reused:.2f}"
    )
    assert not CUDA or max(defaults, of_reused) <= MOST_TIMES, figure
    return figure


# The table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A check: its name, what runs it, and whether nothing else may run at the same time."""

    name: str
    run: Callable[[], str]
    alone: bool = False


def checks() -> Iterator[Check]:
    yield Check("place-whole", partial(place, "elsewhere", 1.0))
    yield Check("unnoticed-compile", partial(unnoticed, "compile"))
    yield Check("trainer", trainer)
    for fault in ("hang", "crash", "kernel"):
        for where in ("trial", "elsewhere"):
            yield Check(f"fault-{fault}-{where}", partial(survive, fault, where))
    yield Check("fault-memory-elsewhere", partial(survive, "share", "elsewhere"))
    yield Check("place-trial", partial(place, "auto", 1.0))
    yield Check("place-half", partial(place, "elsewhere", 0.5))
    for how in ("amp", "channels-last", "graphs"):
        yield Check(f"unnoticed-{how}", partial(unnoticed, how))
    yield Check("fault-memory-trial", partial(survive, "memory", "trial"), alone=True)
    yield Check("memory", memory_released, alone=True)
    yield Check("time-cnn", partial(timed, "cnn"), alone=True)
    yield Check("time-transformer", partial(timed, "transformer"), alone=True)


@dataclass(frozen=True)
class Row:
    """The result of a check; ``output`` has the last lines that it has printed if it failed."""

    check: str
    state: str
    seconds: float
    found: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.check:24} {self.state:5} {self.seconds:5.0f}  {self.found}"


def run_here(check: Check, limit_s: float) -> None:
    """Run a check in this process, and write its result into its folder."""
    faulthandler.dump_traceback_later(limit_s - 3)
    memory = {"object_store_memory": 400 * MB}
    ray.init("local", num_cpus=4, num_gpus=1, include_dashboard=False, **memory)
    try:
        state, found = "PASS", check.run()
    except Skipped as reason:
        state, found = "SKIP", str(reason)
    except Exception as error:
        traceback.print_exc()
        state, found = "FAIL", str(error) if type(error) is AssertionError else repr(error)
    Path(os.environ[FOLDER], "result").write_text(json.dumps([state, found]))
    faulthandler.cancel_dump_traceback_later()


def run_apart(check: Check, limit_s: float, ends: float) -> Row:
    """Run a check in a process of its own, for so many seconds, and until a time at most."""
    limit_s = min(limit_s, ends - time.monotonic())
    if limit_s < 20:
        return Row(check.name, "SKIP", 0, "no time was left")
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="gpu-"))
    environment = {
        **os.environ,
        FOLDER: str(folder),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    command = [sys.executable, __file__, "--run", check.name, f"{limit_s:.0f}"]
    try:
        with (folder / "output").open("w") as output:
            files = {"stdout": output, "stderr": output}
            process = subprocess.Popen(command, env=environment, start_new_session=True, **files)
            try:
                found = f"ended with exit code {process.wait(limit_s)}"
            except subprocess.TimeoutExpired:
                found = f"took more than {limit_s:.0f} s"
        state, output = "FAIL", (folder / "output").read_text(errors="replace").splitlines()[-30:]
        with contextlib.suppress(OSError, ValueError):  # there is none, or half of one
            state, found = json.loads((folder / "result").read_text())
    finally:
        end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
    failed = "\n".join(output) if state == "FAIL" else ""
    return Row(check.name, state, time.monotonic() - began, found, failed)


def end_processes(folder: Path) -> None:
    """Kill what is left of a check: processes with its folder in their environment."""
    mark = f"{FOLDER}={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def run_all(chosen: list[Check], at_once: int, limit_s: float, within_s: float) -> Iterator[Row]:
    """Run checks, and yield each row when it is there."""
    run = partial(run_apart, limit_s=limit_s, ends=time.monotonic() + within_s)
    with ThreadPoolExecutor(at_once) as pool:
        together = [pool.submit(run, check) for check in chosen if not check.alone]
        yield from (future.result() for future in as_completed(together))
    yield from (run(check) for check in chosen if check.alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="run without CUDA")
    parser.add_argument("--only", nargs="+", default=[""], help="words in the names of checks")
    parser.add_argument("--out", type=Path, help="also write each row to this file, as JSON")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)  # a check, in this process
    asked = parser.parse_args()
    if asked.run:
        name, limit_s = asked.run
        [check] = [check for check in checks() if check.name == name]
        return run_here(check, float(limit_s))
    if asked.cpu:
        os.environ[WITHOUT_CUDA] = "1"
    elif not torch.cuda.is_available():
        sys.exit("There is no GPU that PyTorch can use. To run without CUDA, pass --cpu.")
    card = "no CUDA" if asked.cpu else torch.cuda.get_device_name()
    print(f"{card}, PyTorch {torch.__version__}, Ray {ray.__version__}")
    print(f"{'check':24} state     s  found", flush=True)
    chosen = [check for check in checks() if any(word in check.name for word in asked.only)]
    rows = []
    for row in run_all(chosen, *(LIMITS_WITHOUT if asked.cpu else LIMITS)):
        print(row, flush=True)
        rows.append(row)
        if asked.out:
            lines = (json.dumps({"card": card, **dataclasses.asdict(one)}) for one in rows)
            asked.out.write_text("\n".join(lines) + "\n")
    failed = [row for row in rows if row.state == "FAIL"]
    for row in failed:
        print(f"\n{row.check}:", *row.output.splitlines()[-10:], sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
