"""A worker's copies of uploaded files: whole or not there, its own for every slot, bounded, one fetch for all."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from slotwise.model.errors import EnvironmentProblem
from slotwise.model.uploads import UploadedFile
from slotwise.runtime.blob_cache import BlobCache
from slotwise.runtime.file_lock import locked, remove_locked, try_lock


class Source:
    """Gives the bytes that it was made with, and counts."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {hashlib.sha256(content).hexdigest(): content for content in contents}
        self.fetched: list[str] = []
        self.damaged = 0

    async def fetch(self, name: str, target: Path, what: str) -> None:
        self.fetched.append(name)
        await asyncio.sleep(0.02)
        content = self.contents[name]
        if self.damaged:
            self.damaged -= 1
            content = content[:-1]
        target.write_bytes(content)


def file(content: bytes, name: str = "file") -> UploadedFile:
    return UploadedFile(name, hashlib.sha256(content).hexdigest(), len(content))


def kept(root: Path) -> set[int]:
    return {path.stat().st_size for path in (root / "blobs").iterdir()}


def test_a_file_is_fetched_once_and_every_slot_has_a_copy_of_its_own(tmp_path: Path) -> None:
    source = Source(b"content")
    caches = [BlobCache(tmp_path / "cache", 1000, source) for _ in range(2)]

    async def run() -> None:
        # Two workers of one machine, three slots each, at once.
        targets = [tmp_path / f"copy-{number}" for number in range(6)]
        places = [caches[n % 2].place(file(b"content"), target) for n, target in enumerate(targets)]
        assert sorted(await asyncio.gather(*places)) == [False] * 5 + [True]
        targets[0].write_bytes(b"changed by a job")
        assert await caches[0].place(file(b"content"), tmp_path / "later") is False
        assert {path.read_bytes() for path in (*targets[1:], tmp_path / "later")} == {b"content"}

    asyncio.run(run())
    assert len(source.fetched) == 1
    assert list((tmp_path / "cache" / "incoming").iterdir()) == []


def test_a_damaged_copy_is_fetched_again_and_what_comes_damaged_twice_is_an_error(tmp_path: Path) -> None:
    source = Source(b"content")
    cache = BlobCache(tmp_path / "cache", 1000, source)

    async def run() -> None:
        await cache.place(file(b"content"), tmp_path / "a")
        (path,) = (tmp_path / "cache" / "blobs").iterdir()
        path.write_bytes(b"conTent")
        assert await cache.place(file(b"content"), tmp_path / "b")
        path.unlink()
        source.damaged = 1
        assert await cache.place(file(b"content"), tmp_path / "c")
        path.unlink()
        source.damaged = 2
        with pytest.raises(EnvironmentProblem, match="damaged twice"):
            await cache.place(file(b"content", "data.csv"), tmp_path / "d")

    asyncio.run(run())
    assert {(tmp_path / name).read_bytes() for name in "abc"} == {b"content"}
    assert not (tmp_path / "d").exists()
    assert kept(tmp_path / "cache") == set()


def test_the_cache_is_bounded_and_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    contents = [bytes([n]) * (100 + n) for n in range(4)]
    cache = BlobCache(tmp_path / "cache", 320, Source(*contents, bytes(400)))

    async def run() -> None:
        for number, content in enumerate(contents[:3]):
            await cache.place(file(content), tmp_path / f"copy-{number}")
            os.utime(tmp_path / "cache" / "blobs" / file(content).sha256, (number, number))
        await cache.place(file(contents[0]), tmp_path / "again")
        await cache.place(file(contents[3]), tmp_path / "more")
        assert kept(tmp_path / "cache") == {100, 102, 103}
        # Larger than all of it: for this slot alone.
        assert await cache.place(file(bytes(400)), tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == bytes(400)
        assert kept(tmp_path / "cache") == {100, 102, 103}
        # What is being used stays, whatever the limit.
        async with locked(tmp_path / "cache" / "locks" / file(contents[0]).sha256, shared=True):
            assert cache.trim(0) == 2
        assert kept(tmp_path / "cache") == {100}

    asyncio.run(run())


def test_a_full_disk_makes_room_first_and_is_then_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(b"old", b"new content")
    cache = BlobCache(tmp_path / "cache", 1000, source)
    room = [0]

    async def full(self: Source, name: str, target: Path, what: str) -> None:
        if kept(tmp_path / "cache") or not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        target.write_bytes(self.contents[name])

    async def run() -> None:
        await cache.place(file(b"old"), tmp_path / "a")
        monkeypatch.setattr(Source, "fetch", full)
        with pytest.raises(EnvironmentProblem, match=r"cannot keep the uploaded file 'data.csv'.*No space left.*11 B"):
            await cache.place(file(b"new content", "data.csv"), tmp_path / "b")
        assert not (tmp_path / "b").exists()
        assert kept(tmp_path / "cache") == set()
        room[0] = 1
        assert await cache.place(file(b"new content"), tmp_path / "b")

    asyncio.run(run())


def test_what_a_killed_worker_was_fetching_goes_and_what_a_living_one_is_stays(tmp_path: Path) -> None:
    incoming = tmp_path / "cache" / "incoming"
    incoming.mkdir(parents=True)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getppid()):
        (incoming / f"{pid}-x").write_bytes(b"half")
    asyncio.run(BlobCache(tmp_path / "cache", 1000, Source(b"x")).place(file(b"x"), tmp_path / "x"))
    assert [path.name for path in incoming.iterdir()] == [f"{os.getppid()}-x"]


def test_a_lock_that_was_removed_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = try_lock(path)
    assert first is not None
    assert try_lock(path) is None
    assert try_lock(path, shared=True) is None
    remove_locked(path, first)
    one, two = try_lock(path, shared=True), try_lock(path, shared=True)
    assert one is not None
    assert two is not None
    assert try_lock(path) is None
    os.close(one)
    os.close(two)
