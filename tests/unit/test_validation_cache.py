"""A cache of scores: what its names depend on, and several who write to it at once."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs
import pytest

from tunekit.core.validation import Outcome, Request, Status
from tunekit.core.values import admitted
from tunekit.validating.cache import ValidationCache, digest_of
from tunekit.validating.fingerprint import fingerprint

LOCAL = pyarrow.fs.LocalFileSystem()


def folder(root: Path, **files: str) -> str:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_a_digest_has_the_names_and_the_bytes_of_all_files(tmp_path):
    same = [folder(tmp_path / n, weights="1", below__more="2") for n in ("a", "b/c")]
    others = [
        folder(tmp_path / "d", weights="1", below__more="3"),
        folder(tmp_path / "e", weights="1", below__less="2"),
        folder(tmp_path / "f", weights="1", more="2"),
        folder(tmp_path / "g", weights="1"),
        folder(tmp_path / "h", weights="12", below__more=""),
    ]
    digests = [digest_of(LOCAL, path) for path in same]
    assert digests[0] == digests[1] == digest_of(LOCAL, f"{same[0]}/")
    assert len({digests[0], *(digest_of(LOCAL, path) for path in others)}) == 6


def test_what_is_not_there_has_no_digest(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(OSError):
            digest_of(LOCAL, str(tmp_path / name))


def test_a_key_has_every_part():
    cache = ValidationCache("/nowhere")
    keys = {
        cache.key("digest", "fingerprint", {"lr": 0.1}),
        cache.key("digests", "fingerprint", {"lr": 0.1}),
        cache.key("digest", "fingerprints", {"lr": 0.1}),
        cache.key("digest", "fingerprint", {"lr": 0.2}),
        cache.key("digest", "fingerprint", {"lr": "0.1"}),
        cache.key("digest", "fingerprint", {}),
    }
    assert len(keys) == 6
    one, other = {"lr": 0.1, "width": 3}, {"width": 3, "lr": 0.1}
    assert cache.key("d", "f", one) == cache.key("d", "f", other), "in whatever order"


def test_several_may_write_at_once_and_nobody_reads_half_of_it(tmp_path):
    score = {"accuracy": 0.5, "by_class": {str(n): n / 7 for n in range(200)}}
    caches = [ValidationCache(str(tmp_path)) for _ in range(4)]
    key, found = caches[0].key("digest", "fingerprint", {}), []

    def write(cache: ValidationCache) -> None:
        for _ in range(50):
            cache.keep(key, validated(score), "validate")

    threads = [threading.Thread(target=write, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found.append(ValidationCache(str(tmp_path)).get(key))
    found.append(caches[0].get(key))
    assert all(one in (None, score) for one in found) and found[-1] == score
    assert found.index(score) <= found.count(None), "once it is there, it stays"
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_a_cache_that_cannot_be_written_is_told_of_once(tmp_path, caplog):
    cache = ValidationCache(str(tmp_path))
    key = cache.key("digest", "fingerprint", {})
    (tmp_path / key[:2]).write_text("in the way")
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        for _ in range(3):
            cache.keep(key, validated({"accuracy": 0.5}), "validate")
    assert len(caplog.records) == 1 and "does not work" in caplog.text


@pytest.mark.parametrize("entry", ["", "[]", '{"metrics": 3}', '{"other": {}}', "\x00"])
def test_what_is_no_entry_is_none(tmp_path, entry):
    cache = ValidationCache(str(tmp_path))
    key = cache.key("digest", "fingerprint", {})
    cache.keep(key, validated({"accuracy": float("nan")}), "validate")
    [path] = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["metrics"]
    path.write_text(entry)
    assert cache.get(key) is None


class Odd:
    """A hyperparameter that JSON does not know."""

    def __repr__(self):
        return "Odd()"


def test_a_running_sweep_and_a_recorded_one_have_the_same_keys():
    cache = ValidationCache("/nowhere")
    config = {"lr": 0.1, "sizes": (64, 32), "odd": Odd(), 3: {"deep": {1}}}
    recorded = json.loads(json.dumps(admitted(config)))
    assert recorded != config
    assert cache.key("d", "f", config) == cache.key("d", "f", recorded)


def validated(metrics: dict) -> Outcome:
    return Outcome(Request("a", 1), Status.VALIDATED, metrics)


def test_whatever_goes_wrong_with_a_lookup_the_checkpoint_is_validated(tmp_path, caplog):
    checkpoint = SimpleNamespace(filesystem=LOCAL, path=folder(tmp_path / "a", weights="1"))
    gone = SimpleNamespace(filesystem=LOCAL, path=str(tmp_path / "gone"))
    there = str(tmp_path / "scores")
    find = partial(ValidationCache(there).find, "mark")
    key, score = find(checkpoint, {})
    assert key is not None and score is None
    ValidationCache(there).keep(key, validated({"accuracy": 0.5}), "validate")
    assert find(checkpoint, {}) == (key, {"accuracy": 0.5})
    assert pickle.loads(pickle.dumps(find))(checkpoint, {}) == (key, {"accuracy": 0.5})
    assert find(gone, {}) == (None, None)
    for where in ("no://such", str(tmp_path / "a/weights")):
        cache = ValidationCache(where)
        assert cache.find("mark", checkpoint, {}) == (None, None)
        cache.keep(key, validated({"accuracy": 0.5}), "validate")
        assert caplog.text.count(f"The cache {where} does not work") == 1


def test_a_function_that_cannot_be_told_from_others_has_no_mark():
    cache, own = ValidationCache("/nowhere"), fingerprint(digest_of)
    assert cache.lookup(own, {"n": threading.Lock()}) is None
    assert cache.lookup(fingerprint(threading.Lock()), {}) is None
    marks = [cache.lookup(own, kwargs).args for kwargs in ({"n": 1}, {"n": 1}, {"n": 2})]
    assert marks[0] == marks[1] != marks[2]
