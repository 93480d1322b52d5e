"""Which arguments a validation function can get, and which it still lacks."""

from __future__ import annotations

import functools

import pytest

from tunekit.core.signatures import call_problem, deferred_kind, missing_arguments, signature_of


def documented(checkpoint, train_run_name: str, epoch: int):
    return {"accuracy": 0.5}


def nothing():
    return {"accuracy": 0.5}


def narrow(checkpoint, *, batch_size=256):
    return {"accuracy": 0.5}


def wide(checkpoint, **kwargs):
    return {"accuracy": 0.5}


def positional(checkpoint, config, /):
    return {"accuracy": 0.5}


class Evaluator:
    def __call__(self, checkpoint, epoch):
        return {"accuracy": 0.5}


@pytest.mark.parametrize("fn", [documented, narrow, wide, Evaluator, functools.partial(Evaluator)])
def test_arguments_that_may_come_later_are_not_missed_now(fn):
    assert call_problem(signature_of(fn), {}) is None


@pytest.mark.parametrize(
    ("fn", "kwargs", "says"),
    [
        (nothing, {}, "too many positional arguments"),
        (lambda *, checkpoint: {}, {}, "too many positional arguments"),
        (narrow, {"batchsize": 1}, "'batchsize'"),
        (documented, {"checkpoint": 1}, "'checkpoint'"),
        (positional, {}, "'config' is positional-only"),
        (positional, {"config": 3}, "'config'"),
    ],
)
def test_what_can_never_be_right(fn, kwargs, says):
    assert says in call_problem(signature_of(fn), kwargs)


@pytest.mark.parametrize(
    ("fn", "kwargs", "lacks"),
    [
        (documented, {}, ["train_run_name", "epoch"]),
        (documented, {"epoch": 3}, ["train_run_name"]),
        (documented, {"epoch": 3, "train_run_name": "a"}, []),
        (narrow, {}, []),
        (wide, {}, []),
        (Evaluator, {}, ["epoch"]),
        (lambda first, second=2, *rest, third, **more: {}, {}, ["third"]),
    ],
)
def test_required_arguments_that_are_still_missing(fn, kwargs, lacks):
    assert missing_arguments(signature_of(fn), kwargs) == lacks


async def waits(checkpoint):
    return {"accuracy": 0.5}


def yields(checkpoint):
    yield {"accuracy": 0.5}


async def both(checkpoint):
    yield {"accuracy": 0.5}


class Waiting:
    async def __call__(self, checkpoint):
        return {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (waits, "a coroutine function"),
        (functools.partial(waits), "a coroutine function"),
        (Waiting, "a coroutine function"),
        (Waiting(), "a coroutine function"),
        (yields, "a generator function"),
        (functools.partial(yields), "a generator function"),
        (both, "an asynchronous generator function"),
        (narrow, None),
        (Evaluator, None),
        (len, None),
    ],
)
def test_what_returns_something_else_than_its_result(fn, kind):
    assert deferred_kind(fn) == kind
