"""Examples of documents run, links resolve, and drawn tables and the reference are up to date."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import re
import runpy
from collections import defaultdict
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pyarrow.fs
import pytest
import ray
import torch
from ray import tune
from ray.train.torch import TorchTrainer
from ray.tune import ExperimentAnalysis, ResultGrid
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.search.optuna import OptunaSearch
from sphinx.cmd.build import main as build_site

import tunekit
from scripts import examples, promises
from tests.support.modes import Mode
from tests.support.readers import validate_here
from tests.support.sweeps import Plan
from tests.support.trainables import Counting
from tunekit.schedulers import MOASHA

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("[!_]*.md"), promises.PAGE])
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUBLIC = [tunekit, *(getattr(tunekit, name) for name in sorted(tunekit._SUBMODULES))]


def public() -> list[tuple[str, Any]]:
    """The public classes and functions, by the names that a user imports."""
    return [
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in PUBLIC
        for name in module.__all__
        if not isinstance(getattr(module, name), str)
    ]


# The reference -------------------------------------------------------------------------------


def test_each_public_name_except_errors_has_a_doctest_that_runs():
    # Of a class, its own docstring: an example of a method is no example of it.
    find = doctest.DocTestFinder(recurse=False).find
    for name, thing in public():
        found = find(thing, thing.__name__, module=importlib.import_module(thing.__module__))
        examples = [example for test in found for example in test.examples]
        runs = any(not example.options.get(doctest.SKIP) for example in examples)
        assert runs or (isinstance(thing, type) and issubclass(thing, Exception)), name


# Links ---------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Return the link targets in a document: its headings, named as on a repository's pages."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.M)
    }


def broken_links(text: str, of: Path) -> list[str]:
    """Return the broken links of a text; links to other sites are checked but not followed."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]*)\)", text):
        if re.match(r"\w+:", target):
            right = re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[\w\-./~%#?=&]*)?", target)
        else:
            name, _, anchor = target.partition("#")
            path = (of.parent / name).resolve() if name else of
            right = path.exists() and path.is_relative_to(ROOT)
            if right and anchor:
                right = path.suffix == ".md" and anchor in anchors(path)
        if not right:
            broken.append(target)
    return broken


def text_of(path: Path) -> str:
    """Return the text of a document or a notebook."""
    if path.suffix == ".md":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_links_of_documents_and_notebooks_resolve():
    broken = {path.name: broken_links(text_of(path), path) for path in [*DOCUMENTS, *NOTEBOOKS]}
    assert not any(broken.values()), broken


def test_readme_figures_are_those_of_the_table_in_docs_index():
    rows = re.findall(
        r"^\| .* \| ([\d.]+) ± .* \| (\d+) ± ", (ROOT / "docs/index.md").read_text(), re.M
    )
    quoted = re.findall(r"\| ([\d.]+) \| (\d+) \|", (ROOT / "README.md").read_text())
    assert len(quoted) == 4 and set(quoted) <= set(rows)


# What is drawn -------------------------------------------------------------------------------


def test_table_of_promises_matches_the_docstrings_of_the_test_modules():
    assert promises.unstated() == [], "A module's first line has to be a whole sentence."
    assert promises.is_current(), f"tests/README.md is old. Run: {promises.COMMAND}"


def test_migrating_page_matches_the_programs_in_docs_frameworks():
    page = examples.PAGE.read_text()
    assert examples.shown() in page, f"The page is old. Run: {examples.COMMAND}"


# Examples ------------------------------------------------------------------------------------


@dataclass
class Block:
    """Code of a document, and what it prints, if the document says so."""

    document: str
    code: str
    prints: str | None
    line: int


def sections_of(path: Path) -> dict[tuple[str, str], list[Block]]:
    """Return the examples of a document, by its name and their section."""
    text, section, last = path.read_text(), "", 0
    found: dict[tuple[str, str], list[Block]] = defaultdict(list)
    for part in re.finditer(r"^##? ([^\n]*)$|^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        heading, language, inside = part.groups()
        if heading is not None:
            section = heading
        elif language == "python":
            block = Block(path.name, inside, None, line=text.count("\n", 0, part.start(3)))
            found[path.name, section].append(block)
        elif language == "text" and found and not text[last : part.start()].strip():
            block.prints = inside
        last = part.end()
    return found


# These are run as they stand, on a Ray: tests/ray/test_documented_programs.py.
ELSEWHERE = {ROOT / name for name in ("README.md", "docs/quickstart.md", "docs/torchtrainer.md")}
SECTIONS = {
    place: blocks
    for path in DOCUMENTS
    if path not in ELSEWHERE
    for place, blocks in sections_of(path).items()
}


def validate(checkpoint, batch_size=1):
    return {"accuracy": 0.5}


def train(config):
    tune.report({"loss": 1.0})


def count(model, optimizer):
    model.weight.data += 1
    return 1 / model.weight[0, 0].item()


def build(config):
    return torch.nn.Linear(2, 1), None, 0


class Journey(Counting):
    """The weights of the README: they approach 1, and pass 0.8, the best."""

    def step(self):
        w = 1 - (1 - self.config["lr"]) ** (self.steps + 1)
        return {**super().step(), "w": w, "loss": (1 - w) ** 2}


def score(attempt):
    request = attempt.request
    if request.iteration == 2 and request.report["config"]["lr"] == 0.25:
        raise ValueError("no such image: 7.png")
    return {"accuracy": 1 - abs(0.8 - request.report["w"])}


def run_digits(folder: Path) -> ResultGrid:
    """A finished sweep, in a folder from which it can be restored."""
    tunekit.Tuner(
        train,
        run_config=tune.RunConfig(storage_path=str(folder), name="sweep"),
        validation_config=tunekit.ValidationConfig(fn=validate),
    )
    asha = ASHAScheduler("training_iteration", max_t=9, grace_period=3, reduction_factor=3)
    plan = Plan(folder, asha, trials=1).training(Journey).validating(score, seconds=1.5).logging()
    plan.tuning(param_space={"lr": tune.grid_search([0.25, 0.9, 0.1, 0.05])}).run()
    (folder / "sweep").rename(folder / "digits")
    goal = {"default_metric": "accuracy", "default_mode": "max"}
    return ResultGrid(ExperimentAnalysis(str(folder / "digits"), **goal))


@pytest.fixture
def names(tmp_path, monkeypatch) -> Iterator[dict[str, Any]]:
    """Return the names that every example uses. Ray is not started, and `fit` returns at once."""
    monkeypatch.setattr(ray, "init", lambda *args, **options: pytest.fail("Ray was started"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    fitted = cache(lambda: run_digits(tmp_path / "fitted"))
    for tuner in (tune.Tuner, tunekit.Tuner):
        monkeypatch.setattr(tuner, "fit", lambda self: fitted())
    names = {
        "ASHAScheduler": ASHAScheduler,
        "FIFOScheduler": FIFOScheduler,
        "Net": Counting,
        "MOASHA": MOASHA,
        "OptunaSearch": OptunaSearch,
        "PopulationBasedTraining": PopulationBasedTraining,
        "TorchTrainer": TorchTrainer,
        "pyarrow": pyarrow,
        "ray": ray,
        "torch": torch,
        "train": train,
        "tune": tune,
        "tunekit": tunekit,
        "validate": validate,
    }
    with pd.option_context("display.width", 120, "display.max_columns", 20):
        yield names


def given_loggers(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    names.update(MLflowLoggerCallback=lambda **settings: LoggerCallback())  # it is not installed
    yield


def given_saving(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    names.update(build=build, train_epoch=count)
    savers, reports = [], []
    patch.setattr(tunekit, "checkpoint_with", savers.append)
    patch.setattr(tune, "report", reports.append)
    yield
    names["train"]({})
    savers[-1](folder)
    assert len(reports) == 20 and {"weight", "bias"} == torch.load(folder / "model.pt").keys()


def with_optimizer(config):
    model, _, epoch = build(config)
    return model, torch.optim.SGD(model.parameters(), 0.1), epoch


def given_scores(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The accuracy does not rise; the third checkpoint was not validated, the newest is pending."""
    status = ray.train.ReportedCheckpointStatus
    reported: list[ray.train.ReportedCheckpoint] = []
    logged: dict[int, float] = {}

    def report(metrics: dict[str, float]) -> None:
        names["saved"] = Path(folder, str(len(reported)))
        names["saved"].mkdir()
        savers[-1](names["saved"])
        for one in reported[-1:]:
            one.status = status.VALIDATED if len(reported) != 3 else status.COMMITTED
            if one.status is status.VALIDATED:
                one.metrics["accuracy"] = 0.5
        checkpoint = ray.train.Checkpoint(str(names["saved"]))
        row = {**metrics, "training_iteration": len(reported) + 1}
        reported.append(ray.train.ReportedCheckpoint(checkpoint, row, status.PENDING_VALIDATION))

    savers: list[Any] = []
    names.update(build=with_optimizer, train_epoch=count)
    names["run"] = SimpleNamespace(log=lambda row, step: logged.update({step: row["accuracy"]}))
    patch.setattr(tunekit, "checkpoint_with", savers.append)
    patch.setattr(tune, "report", report)
    patch.setattr(tunekit, "get_all_reported_checkpoints", lambda *mode: reported)
    yield
    names["train"]({})
    assert logged == {n: 0.5 for n in range(1, len(reported)) if n != 3}
    yield
    model, *_ = build({})
    names["averaged"](model, most=2)
    states = [torch.load(f"{one.checkpoint.path}/model.pt") for one in reported[-3:-1]]
    assert torch.equal(model.weight, (states[0]["weight"] + states[1]["weight"]) / 2)


def given_pbt(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sweep has run: some trials were overwritten."""
    yield
    yield
    model = torch.nn.Linear(1, 1)
    donors = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9).state_dict()
    assert names["resumed"]({"lr": 0.1}, model, donors).param_groups[0]["lr"] == 0.1
    space = {"lr": tune.loguniform(1e-4, 1e-1)}
    pbt = PopulationBasedTraining(
        "training_iteration", perturbation_interval=2, hyperparam_mutations=space
    )
    ran = Plan(folder, pbt, Mode.WAIT, trials=8).tuning(param_space=space).run()
    validation = names["tuner"].validation
    validation.ledger.state = ran.validation.ledger.state
    names["trial_id"] = validation.lineage.to_dataframe().trial_id[0]
    yield
    assert len(names["lineage"].ancestors(names["trial_id"])) >= 1


def given_evaluator(
    names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[None]:
    names.update(load_digits=lambda: ([1], [2]), accuracy_of=lambda *args: 0.5)
    yield
    assert names["Evaluator"]()(None) == {"accuracy": 0.5}


def given_context(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is a checkpoint; the function under test gets the width of its context."""
    widths: list[int] = []
    names.update(checkpoint=folder, Net=lambda width: width)
    names.update(accuracy_of=lambda model, *_: widths.append(model))
    yield
    yield
    assert widths == [64]


def given_workers(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    names["right_and_all"] = lambda folder: torch.tensor([1.0, 2.0])
    patch.setattr(torch.distributed, "all_reduce", lambda counts: None)
    yield
    checkpoint = tune.Checkpoint.from_directory(folder)
    assert names["validation_loop"]({"checkpoint": checkpoint}) == {"accuracy": 0.5}


def given_digits(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    names["results"] = run_digits(folder)
    names["load_model"] = lambda folder: list(Path(folder).iterdir())
    yield


def given_earlier(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    run_digits(folder)
    yield
    assert names["points"] == [{"lr": 0.25}, {"lr": 0.9}], "the best ones first"


def given_later(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Validations run in this process."""

    def accuracy_of(path: str, images: dict[str, float]) -> float:
        return 0.5 + images[path.rpartition("/Journey_00000_")[2][:5]]

    names.update(results=run_digits(folder), load_model=str, accuracy_of=accuracy_of)
    names["noisy_images"] = {"00000": 0.1, "00001": 0.2, "00002": 0.0}
    validate_here(patch)
    yield


def given_storage(names: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local folder stands for the bucket."""
    bucket = folder / "bucket/sweeps"
    bucket.mkdir(parents=True)
    names["results"] = run_digits(bucket)
    below = pyarrow.fs.SubTreeFileSystem(str(folder), pyarrow.fs.LocalFileSystem())
    patch.setattr(pyarrow.fs, "S3FileSystem", lambda **options: below)
    yield


Given = Callable[[dict[str, Any], Path, pytest.MonkeyPatch], Iterator[None]]
# What the examples of a section take for granted besides: a generator, which goes on after each
# of them, to look what came of it.
GIVEN: dict[str, Given] = {
    "Saving": given_saving,
    "Scores in the training loop": given_scores,
    "Validating": given_context,
    "When a validation fails": given_digits,
    "Load once": given_evaluator,
    "In several workers": given_workers,
    "Population based training": given_pbt,
    "The report": given_digits,
    "TensorBoard and other loggers": given_loggers,
    "`tunekit.load`": given_digits,
    "The best checkpoint": given_digits,
    "In Optuna": given_digits,
    "Choosing the winner": given_later,
    "When the driver dies": given_digits,
    "Begin from an earlier sweep": given_earlier,
    "Where results are kept": given_storage,
}


@pytest.mark.parametrize(("document", "section"), SECTIONS)
def test_python_blocks_of_documents_run_and_print_what_follows_them(
    document, section, names, tmp_path, monkeypatch
):
    """The blocks of a section run one after the other, with the same names."""
    folder = tmp_path / "results"
    folder.mkdir()
    given = GIVEN.get(section, lambda *args: iter(()))(names, folder, monkeypatch)
    next(given, None)
    for block in SECTIONS[document, section]:
        # "/results" is the user's own folder.
        code = re.sub('(?<=")((:///)?)/results', rf"\1{folder}", block.code)
        at = compile("\n" * block.line + code, block.document, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(at, names)
        if block.prints is not None:
            lines = [line.rstrip() for line in printed.getvalue().splitlines()]
            assert lines == block.prints.splitlines()
        next(given, None)


# The site ---------------------------------------------------------------------------------------


def test_site_builds_without_warning_and_documents_every_public_name(tmp_path, capsys):
    options = ("--fail-on-warning", "--keep-going", "--quiet", "-n", "-d", tmp_path / "trees")
    code = build_site([*map(str, (*options, ROOT / "docs", tmp_path / "html"))])
    assert code == 0, capsys.readouterr().err
    places = set(re.findall(r' id="([^"]+)"', (tmp_path / "html/reference.html").read_text()))
    assert {name for name, _ in public()} <= places


# The README on a package index ---------------------------------------------------------------


def test_package_description_has_the_readmes_links_as_urls_of_this_version():
    described = runpy.run_path(str(ROOT / "setup.py"))["long_description"]()
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    about = setup["metadata"]
    pages = f"{about['url']}/blob/v{about['version']}/"
    pictures = f"https://raw.githubusercontent.com/tunekit/tunekit/v{about['version']}/"
    link = re.compile(r"(!?)\[[^\]]*\]\(([^)]*)\)")
    expected = [
        target if urlsplit(target).scheme else (pictures if mark else pages) + target
        for mark, target in link.findall((ROOT / "README.md").read_text())
    ]
    assert [target for _, target in link.findall(described)] == expected
    assert len(expected) > 10 and f"{pictures}docs/live.png" in expected
