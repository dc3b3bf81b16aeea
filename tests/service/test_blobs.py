"""Uploaded files over REST: streamed, checked, bounded, and there as long as a job needs them."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from slotwise.dispatcher import uploads as uploads_module
from slotwise.dispatcher.files import LocalFiles
from slotwise.dispatcher.tokens import Role
from slotwise.dispatcher.uploads import BlobLimits
from slotwise.model.errors import ClusterError
from slotwise.model.uploads import Manifest, UploadedFile, Uploads
from tests.service.served import TOKEN, Served, served, wait_for
from tests.unit.worlds import spec

MIB = 1024 * 1024


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as made:
        yield made


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(service: Served, data: bytes, name: str | None = None) -> httpx.Response:
    with service.client() as client:
        return client.put(f"/v1/blobs/{name or sha(data)}", content=data)


def missing(service: Served, *names: str) -> list[str]:
    with service.client() as client:
        answer = client.post("/v1/blobs/missing", json={"hashes": list(names)})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["missing"])


def partial(service: Served) -> list[Path]:
    return list(service.master.options.directory.glob("*.partial"))


def with_program(service: Served, text: bytes = b"print()\n", name: str = "job.py", **changes: Any) -> dict[str, Any]:
    """Upload a program with its list; the specification's fields that say so."""
    files = (UploadedFile(name, sha(text), len(text)),)
    listed = msgspec.json.encode(Manifest(files))
    put(service, text)
    put(service, listed)
    return {"program": name, "working_dir": ".", "uploads": Uploads(sha(listed)), **changes}


def test_what_is_missing_is_uploaded_once_and_read_by_workers(service: Served) -> None:
    data = os.urandom(3 * MIB + 17)
    assert missing(service, sha(data), sha(b"")) == [sha(data), sha(b"")]
    answer = put(service, data)
    assert (answer.status_code, answer.json()) == (201, {"sha256": sha(data), "size": len(data)})
    assert put(service, b"").status_code == 201
    assert missing(service, sha(data), sha(b"")) == []
    assert put(service, data).status_code == 201
    with service.client(service.token("rack", Role.JOIN)) as worker:
        answer = worker.get(f"/v1/blobs/{sha(data)}")
        assert answer.content == data
        assert answer.headers["content-length"] == str(len(data))
        assert worker.get(f"/v1/blobs/{sha(b'')}").content == b""
        assert worker.get(f"/v1/blobs/{sha(b'other')}").status_code == 404
        assert worker.put(f"/v1/blobs/{sha(data)}", content=data).status_code == 403


def test_other_bytes_than_announced_are_refused_and_nothing_is_kept(service: Served) -> None:
    answer = put(service, b"these", sha(b"those"))
    assert answer.status_code == 400
    assert "have the SHA-256" in answer.json()["detail"]
    assert missing(service, sha(b"these"), sha(b"those")) == [sha(b"these"), sha(b"those")]
    assert partial(service) == []
    assert put(service, b"x", "A" * 64).status_code == 400
    with service.client() as client:
        assert client.post("/v1/blobs/missing", json={"hashes": ["../x"]}).status_code == 400


def test_an_upload_that_breaks_off_leaves_nothing(service: Served) -> None:
    data = os.urandom(2 * MIB)
    with socket.create_connection(("127.0.0.1", service.master.port)) as line:
        head = f"PUT /v1/blobs/{sha(data)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        line.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[: MIB + 5])
        wait_for(lambda: partial(service))
    wait_for(lambda: not partial(service))
    assert missing(service, sha(data)) == [sha(data)]
    assert put(service, data).status_code == 201


def test_an_upload_that_goes_silent_is_given_up(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_module, "_SILENCE_S", 0.2)
    with socket.create_connection(("127.0.0.1", service.master.port)) as line:
        head = f"PUT /v1/blobs/{sha(b'xy')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        line.sendall(f"{head}Content-Length: 2\r\n\r\nx".encode())
        assert b" 408 " in line.recv(200)
    assert partial(service) == []


def test_a_large_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    size = 96 * MIB
    block = bytes(MIB)
    digest = hashlib.sha256()
    for _ in range(size // MIB):
        digest.update(block)
    name = digest.hexdigest()
    with served(tmp_path / "store") as service, service.client() as client:
        tracemalloc.start()
        pieces = (block for _ in range(size // MIB))
        assert client.put(f"/v1/blobs/{name}", content=pieces).status_code == 201
        with client.stream("GET", f"/v1/blobs/{name}") as answer:
            got = hashlib.sha256()
            for piece in answer.iter_bytes():
                got.update(piece)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert got.hexdigest() == name
    assert peak < 24 * MIB


def test_what_is_too_large_is_refused_at_once_and_while_it_comes(tmp_path: Path) -> None:
    with served(tmp_path / "store", blob_limits=BlobLimits(file_bytes=MIB)) as service, service.client() as client:
        data = bytes(MIB + 1)
        for content in (data, iter([data[:MIB], data[MIB:]])):
            answer = client.put(f"/v1/blobs/{sha(data)}", content=content)
            assert answer.status_code == 413
            assert "blob.max-file-size" in answer.json()["detail"]
        assert put(service, data[:-1]).status_code == 201
        assert client.post("/v1/blobs/missing", json={"hashes": []}).json()["max-file-size"] == MIB
        assert partial(service) == []


def test_two_who_upload_the_same_at_once_both_succeed(service: Served) -> None:
    data = os.urandom(8 * MIB)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(put(service, data).status_code)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [201] * 4
    assert partial(service) == []
    with service.client() as client:
        assert client.get(f"/v1/blobs/{sha(data)}").content == data


def test_a_full_disk_is_said_and_nothing_is_kept(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        answer = put(service, b"data")
    assert answer.status_code == 507
    assert "No space left on device" in answer.json()["detail"]
    assert partial(service) == []
    assert missing(service, sha(b"data")) == [sha(b"data")]


def test_a_damaged_blob_is_cut_short_set_aside_and_can_come_again(service: Served) -> None:
    data = os.urandom(3 * MIB)
    put(service, data)
    path = service.master.options.directory / "blobs" / sha(data)[:2] / sha(data)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with service.client() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(f"/v1/blobs/{sha(data)}")
        assert client.get(f"/v1/blobs/{sha(data)}").status_code == 404
    assert missing(service, sha(data)) == [sha(data)]
    assert put(service, data).status_code == 201
    with service.client() as client:
        assert client.get(f"/v1/blobs/{sha(data)}").content == data


# ----------------------------------------------------------------------------------------------- submissions


def test_a_job_whose_files_are_here_is_accepted_and_any_other_refused(service: Served) -> None:
    good = with_program(service)
    assert service.submit(**good)
    unknown = Uploads("0" * 64)
    lacking = msgspec.json.encode(Manifest((UploadedFile("job.py", sha(b"gone"), 4),)))
    wrong_size = msgspec.json.encode(Manifest((UploadedFile("job.py", sha(b"print()\n"), 3),)))
    outside = msgspec.json.encode(Manifest((UploadedFile("../job.py", sha(b"print()\n"), 8),)))
    for listed in (lacking, wrong_size, outside, b"{", b"[]"):
        put(service, listed)
    for changes, words in (
        ({"uploads": unknown}, "is not here; upload it first"),
        ({"uploads": Uploads("../" * 21 + "x")}, "64 hexadecimal|is not here"),
        ({"uploads": Uploads(sha(lacking))}, "'job.py' is not here"),
        ({"uploads": Uploads(sha(wrong_size))}, "does not have 3 bytes"),
        ({"uploads": Uploads(sha(outside))}, r"without \. and \.\."),
        ({"uploads": Uploads(sha(b"{"))}, "is not one"),
        ({"uploads": Uploads(sha(b"[]"))}, "is not one"),
        ({"program": "other.py"}, "'other.py' is not among"),
        ({"py_files": ("lib.zip",)}, "'lib.zip' is not among"),
        ({"program": "../job.py"}, "is not among"),
        ({"working_dir": "here"}, "absolute path, or ."),
        ({"uploads": None}, "must be absolute"),
    ):
        with pytest.raises(ClusterError, match=words):
            service.submit(**{**good, **changes})
    assert len(service.master.dispatcher.jobs) == 1


def test_uploads_survive_the_master_and_a_repeated_submission_needs_them_no_more(tmp_path: Path) -> None:
    with served(tmp_path / "store") as service:
        good = with_program(service)
    with served(tmp_path / "store") as service:
        job = service.run(service.master.submit(spec(**good), "key"))
        for name in service.master.uploads._sizes:
            service.master.uploads._store.remove(name)
        assert service.run(service.master.submit(spec(**good), "key")) == job


def test_what_no_job_needs_goes_in_time_and_what_one_needs_never(tmp_path: Path) -> None:
    limits = BlobLimits(unused_s=3600)
    with served(tmp_path / "store", blob_limits=limits) as service:
        uploads = service.master.uploads
        job = service.submit(**with_program(service))
        put(service, b"alone")
        before = uploads.count

        def later(seconds: float) -> None:
            uploads._used = {name: when - seconds for name, when in uploads._used.items()}

        later(3500)
        service.run(uploads.sweep())
        assert uploads.count == before
        assert missing(service, sha(b"alone")) == []
        later(3500)
        service.run(uploads.sweep())
        assert uploads.count == before
        later(200)
        service.run(uploads.sweep())
        assert missing(service, sha(b"alone"), sha(b"print()\n")) == [sha(b"alone")]
        record = service.master.dispatcher.jobs[job]
        assert not record.released
        later(10**6)
    # The next master knows what the job needs from its record.
    with served(tmp_path / "store", blob_limits=limits) as service:
        uploads = service.master.uploads
        uploads._used = dict.fromkeys(uploads._used, -(10.0**6))
        service.run(uploads.sweep())
        assert missing(service, sha(b"print()\n")) == []
        record = service.master.dispatcher.jobs[job]
        record.released = True
        uploads._used = dict.fromkeys(uploads._used, -(10.0**6))
        service.run(uploads.sweep())
        assert uploads.count == 0
        assert LocalFiles(tmp_path / "store").names(f"blobs/{sha(b'print()' + bytes([10]))[:2]}") == []


def test_room_is_made_of_what_nobody_needs_and_never_of_what_a_job_does(tmp_path: Path) -> None:
    limits = BlobLimits(file_bytes=MIB, total_bytes=2 * MIB)
    with served(tmp_path / "store", blob_limits=limits) as service:
        uploads = service.master.uploads
        program = bytes(MIB - 1000)
        service.submit(**with_program(service, program))
        old, young = os.urandom(MIB // 2), os.urandom(MIB // 3)
        assert put(service, old).status_code == 201
        assert put(service, young).status_code == 201
        answer = put(service, os.urandom(MIB // 2))
        assert (answer.status_code, "blob.max-total-size" in answer.json()["detail"]) == (507, True)
        # Nobody has asked for it for a while: now it may go.
        uploads._used[sha(old)] -= 10_000
        assert put(service, os.urandom(MIB // 2)).status_code == 201
        assert missing(service, sha(old), sha(young), sha(program)) == [sha(old)]
        assert uploads.size_bytes <= limits.total_bytes


def test_while_it_is_not_known_what_a_job_needs_nothing_goes(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = service.master.uploads
    good = with_program(service)
    service.submit(**good)
    put(service, b"alone")
    manifest = good["uploads"].manifest
    path = service.master.options.directory / "blobs" / manifest[:2] / manifest
    away = path.rename(path.with_name("away"))
    uploads._used = dict.fromkeys(uploads._used, -(10.0**6))
    service.run(uploads.sweep())
    assert missing(service, sha(b"alone")) == []
    away.rename(path)
    uploads._sizes[manifest] = path.stat().st_size
    uploads._used = dict.fromkeys(uploads._used, -(10.0**6))
    service.run(uploads.sweep())
    assert missing(service, sha(b"alone"), sha(b"print()\n")) == [sha(b"alone")]
