"""A cache of scores: what its names depend on, and several who write to it at once."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pyarrow.fs
import pytest

from tunekit.storage import LocalFolder
from tunekit.validation_cache import ValidationCache, digest_of

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
    cache = ValidationCache(LocalFolder(Path("/nowhere")))
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
    caches = [ValidationCache.at(tmp_path) for _ in range(4)]
    key, found = caches[0].key("digest", "fingerprint", {}), []

    def write(cache: ValidationCache) -> None:
        for _ in range(50):
            cache.put(key, score)

    threads = [threading.Thread(target=write, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found.append(ValidationCache.at(tmp_path).get(key))
    found.append(caches[0].get(key))
    assert all(one in (None, score) for one in found) and found[-1] == score
    assert found.index(score) <= found.count(None), "once it is there, it stays"
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_a_cache_that_cannot_be_written_is_told_of_once(tmp_path, caplog):
    cache = ValidationCache.at(tmp_path)
    key = cache.key("digest", "fingerprint", {})
    (tmp_path / key[:2]).write_text("in the way")
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        for _ in range(3):
            cache.put(key, {"accuracy": 0.5})
    assert len(caplog.records) == 1 and "does not work" in caplog.text


@pytest.mark.parametrize("entry", ["", "[]", '{"metrics": 3}', '{"other": {}}', "\x00"])
def test_what_is_no_entry_is_none(tmp_path, entry):
    cache = ValidationCache.at(tmp_path)
    key = cache.key("digest", "fingerprint", {})
    cache.put(key, {"accuracy": float("nan")})
    [path] = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["metrics"]
    path.write_text(entry)
    assert cache.get(key) is None
