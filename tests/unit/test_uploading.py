"""What a client uploads, under which names, and what it refuses before anything is sent."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise import uploading
from slotwise.job_options import describe
from slotwise.model.errors import SizeError, UsageError
from slotwise.model.job import JobSpec, check_spec, placed
from slotwise.model.pipeline import PipelineOptions
from slotwise.model.uploads import Manifest, UploadedFile, Uploads, check_name, read_manifest
from slotwise.requirement_files import requirement_files
from slotwise.runtime.archives import archive_fault
from slotwise.uploading import UploadPlan, is_elsewhere, plan_upload, project_files, wants_upload
from tests.unit.worlds import spec


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("job.py", "lib.py", "data.csv", "one.jar"):
        (tmp_path / name).write_text(f"# {name}\n")
    with zipfile.ZipFile(tmp_path / "box.zip", "w") as archive:
        archive.writestr("inside", "x")
    return tmp_path


def described(*args: str, **options: Any) -> JobSpec:
    return describe("job.py", args, options)


def manifest(plan: UploadPlan) -> Manifest:
    assert plan.spec.uploads is not None
    data = plan.sources[plan.spec.uploads.manifest]
    assert isinstance(data, bytes)
    return read_manifest(data)


def names(plan: UploadPlan) -> list[str]:
    return [file.name for file in manifest(plan).files]


def test_every_file_of_a_job_gets_a_name_and_comes_back_as_a_path(home: Path) -> None:
    given = described(
        py_files=["lib.py", "s3a://bucket/x.py"],
        files=["data.csv"],
        archives=["box.zip#box"],
        jars=["one.jar"],
        conf={"spark.jars": "one.jar,hdfs://x/two.jar", "spark.files": "lib.py"},
    )
    plan = plan_upload(given)
    assert names(plan) == ["job.py", "py-files/lib.py", "data.csv", "lib.py", "archives/box.zip", "jars/one.jar"]
    check_spec(plan.spec)
    here = placed(plan.spec, "/slot/job", "/slot/.environment/bin/python")
    assert (here.program, here.working_dir, here.python) == (
        "/slot/job/job.py",
        "/slot/job",
        "/slot/.environment/bin/python",
    )
    assert here.py_files == ("/slot/job/py-files/lib.py", "s3a://bucket/x.py")
    assert here.files == ("/slot/job/data.csv", "/slot/job/lib.py")
    assert here.archives == ("/slot/job/archives/box.zip#box",)
    assert here.jars == ("/slot/job/jars/one.jar",)
    assert here.conf == {"spark.jars": "hdfs://x/two.jar"}
    # The same content is sent once.
    assert len(plan.sources) == 6
    assert placed(spec(), "/slot/job") == spec()


def test_without_files_only_the_environment_is_uploaded(home: Path) -> None:
    assert plan_upload(described(), files=False) == UploadPlan(described(), {}, 0, 0)
    (home / "requirements.txt").write_text("pandas\n")
    plan = plan_upload(described(), "requirements.txt", files=False)
    assert plan.spec.program == str(home / "job.py")
    assert plan.spec.working_dir == str(home)
    assert plan.spec.uploads is not None
    assert plan.spec.uploads.environment == "requirements.txt"
    check_spec(plan.spec)


def test_what_cannot_be_uploaded_is_said_before_anything_is_sent(home: Path) -> None:
    (home / "other").mkdir()
    (home / "other" / "job.py").write_text("# another\n")
    with zipfile.ZipFile(home / "bad.zip", "w") as archive:
        archive.writestr("../../etc/x", "x")
    for options, words in (
        ({"files": ["other/job.py"]}, "both be job.py"),
        ({"py_files": ["other"]}, "is a folder; upload a .zip"),
        ({"archives": ["bad.zip"]}, "leads out of the folder"),
        ({"archives": ["data.csv"]}, "Spark unpacks"),
        ({"conf": {"spark.files": "gone.csv"}}, "there is no file .*gone.csv"),
    ):
        with pytest.raises(UsageError, match=words):
            plan_upload(described(**options))
    with pytest.raises(UsageError, match="names uploaded files already"):
        plan_upload(plan_upload(described()).spec)


def test_a_project_is_uploaded_file_by_file_without_what_belongs_to_tools(home: Path) -> None:
    project = home / "project"
    for name in (
        *("spark-pipeline.yml", "transformations/a.py", "transformations/__pycache__/a.pyc", ".git/config", "b.pyc"),
        *("my-env/pyvenv.cfg", "my-env/lib/x.py", ".venv/x.py", "data/big.csv", "keep/notes.txt", "secret.txt"),
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / "run.sh").touch(0o755)
    (project / "link.py").symlink_to("transformations/a.py")
    (project / ".slotwiseignore").write_text("# no data\ndata/\nsecret.*\n")
    found = [path.relative_to(project).as_posix() for path in project_files(project)]
    assert found == ["keep/notes.txt", "link.py", "run.sh", "spark-pipeline.yml", "transformations/a.py"]
    pipeline = spec(program=str(project / "spark-pipeline.yml"), working_dir=str(project), pipeline=PipelineOptions())
    plan = plan_upload(pipeline)
    assert (plan.spec.program, plan.spec.working_dir) == ("spark-pipeline.yml", ".")
    assert all(file.shared for file in manifest(plan).files)
    assert [file.name for file in manifest(plan).files if file.executable] == ["run.sh"]
    (project / "outside").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="leads out of the project"):
        project_files(project)


@pytest.mark.parametrize(("limit", "value", "words"), [("FILES", 3, "over 3 files"), ("BYTES", 10, "over 10 B")])
def test_a_project_that_is_too_large_says_how_to_make_it_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, words: str
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.py").write_text("12345")
    monkeypatch.setattr(uploading, f"MOST_PROJECT_{limit}", value)
    with pytest.raises(UsageError, match=rf"{words}.*\.slotwiseignore"):
        project_files(tmp_path)


def test_a_master_on_this_machine_is_not_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_elsewhere("http://127.0.0.1:8090")
    assert not is_elsewhere("http://localhost:8090")
    assert not is_elsewhere("https://[::1]:8090")
    assert is_elsewhere("http://192.0.2.7:8090")
    assert [wants_upload(mode, "http://192.0.2.7") for mode in ("auto", "always", "never")] == [True, True, False]
    assert [wants_upload(mode, "http://127.0.0.1") for mode in ("auto", "always", "never")] == [False, True, False]
    with pytest.raises(UsageError, match="auto, always, never"):
        wants_upload("yes", "http://127.0.0.1")


# ----------------------------------------------------------------------------------------------- requirements


def test_a_requirements_file_brings_the_local_files_that_it_names(tmp_path: Path) -> None:
    for name in ("wheels/a-1-py3-none-any.whl", "wheels/notes.txt", "own/b.whl", "c.tar.gz", "d.whl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "base.txt").write_text("-c limits.txt\n")
    (tmp_path / "limits.txt").write_text("pandas<3\n")
    (tmp_path / "requirements.txt").write_text(
        "# all of them\n-r base.txt\n--find-links wheels\npandas>=2 ; python_version > '3'\n"
        "./own/b.whl --hash=sha256:0\n"
        "c.tar.gz\nd @ file:d.whl\nx @ https://host/x.whl\n--index-url https://host/simple\n-r https://host/r.txt\n"
        "requests[socks] \\\n  == 2.0\n"
    )
    assert list(requirement_files(tmp_path / "requirements.txt")) == [
        *(
            "requirements.txt",
            "base.txt",
            "c.tar.gz",
            "d.whl",
            "limits.txt",
            "own/b.whl",
            "wheels/a-1-py3-none-any.whl",
        ),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-e .", "editable"),
        ("../x.whl", "beside or below"),
        ("/abs/x.whl", "path of this machine alone"),
        ("x @ file:///abs/x.whl", "path of this machine alone"),
        ("--find-links=/abs", "path of this machine alone"),
        ("-f ../up", "does not lie below"),
        ("./folder", "is a folder; build a wheel"),
        ("gone.whl", "there is no file gone.whl"),
        ("-r gone.txt", "there is no file gone.txt"),
        ("-f gone", "there is no folder"),
    ],
)
def test_what_a_requirements_file_cannot_bring_is_said(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "requirements.txt").write_text(text + "\n")
    with pytest.raises(UsageError, match=words):
        requirement_files(tmp_path / "requirements.txt")


def test_a_lock_needs_its_project_and_brings_local_packages(tmp_path: Path) -> None:
    lock = tmp_path / "uv.lock"
    lock.write_text(
        '[[package]]\nname = "mine"\nsource = { virtual = "." }\n'
        '[[package]]\nname = "a"\nsource = { path = "wheels/a.whl" }\n'
        '[[package]]\nname = "b"\nsource = { registry = "wheels" }\nwheels = [{ path = "b.whl" }]\n'
        '[[package]]\nname = "c"\nsource = { registry = "https://host/simple" }\nwheels = [{ url = "https://host" }]\n'
    )
    with pytest.raises(UsageError, match=r"needs its pyproject\.toml"):
        requirement_files(lock)
    (tmp_path / "wheels").mkdir()
    for name in ("pyproject.toml", "wheels/a.whl", "wheels/b.whl"):
        (tmp_path / name).write_text(name)
    assert list(requirement_files(lock)) == ["uv.lock", "pyproject.toml", "wheels/a.whl", "wheels/b.whl"]
    lock.write_text('[[package]]\nname = "lib"\nsource = { editable = "lib" }\n')
    with pytest.raises(UsageError, match="build a wheel of it"):
        requirement_files(lock)
    with pytest.raises(UsageError, match="neither a requirements file"):
        requirement_files(tmp_path / "pyproject.toml")
    with pytest.raises(UsageError, match="there is no file"):
        requirement_files(tmp_path / "requirements.txt")


# ----------------------------------------------------------------------------------------------- archives


def tar(path: Path, *entries: tuple[str, bytes, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info, io.BytesIO())
    return path


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (("../x", tarfile.REGTYPE, ""), "leads out"),
        (("/abs", tarfile.REGTYPE, ""), "leads out"),
        (("a/../../x", tarfile.REGTYPE, ""), "leads out"),
        (("a/link", tarfile.SYMTYPE, "../../x"), "leads out, to '../../x'"),
        (("link", tarfile.SYMTYPE, "/etc/passwd"), "leads out, to '/etc/passwd'"),
        (("link", tarfile.LNKTYPE, "../x"), "is a link, and"),
        (("dev", tarfile.CHRTYPE, ""), "neither a file"),
        (("pipe", tarfile.FIFOTYPE, ""), "neither a file"),
    ],
)
def test_a_tar_file_that_leaves_its_folder_is_refused(
    tmp_path: Path, entry: tuple[str, bytes, str], words: str
) -> None:
    fine = ("a/b", tarfile.REGTYPE, "")
    assert words in archive_fault(tar(tmp_path / "x.tgz", fine, entry), "x.tgz")


def test_a_zip_file_that_leaves_its_folder_is_refused_and_sound_archives_are_not(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    for name, words in (("../x", "leads out"), ("/x", "leads out"), ("..\\x", "leads out")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "")
        assert words in archive_fault(path, "x.zip")
    link = zipfile.ZipInfo("a/link")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "../../x")
    assert "leads out" in archive_fault(path, "x.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "../fine")
    assert archive_fault(path, "x.zip") == ""
    fine = tar(
        tmp_path / "fine.tgz",
        ("a", tarfile.DIRTYPE, ""),
        ("a/l", tarfile.SYMTYPE, "../b"),
        ("h", tarfile.LNKTYPE, "a/l"),
        ("..c", tarfile.REGTYPE, ""),
    )
    assert archive_fault(fine, "fine.tgz") == ""
    for name in ("x.zip", "x.tar.gz"):
        path.write_bytes(os.urandom(2000))
        assert "damaged" in archive_fault(path, name)
    fine.write_bytes(fine.read_bytes()[:60])
    assert "damaged" in archive_fault(fine, "fine.tgz")


# ----------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", ".", "a/./b", "..", "a/../b", "a\\b", "a\0b", "x" * 2000, "y" * 256]
)
def test_a_name_that_could_lead_anywhere_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)
    with pytest.raises(UsageError):
        read_manifest(msgspec.json.encode(Manifest((UploadedFile(name, "0" * 64, 1),))))
    if name and not name.startswith("/"):
        with pytest.raises(SizeError):
            check_spec(spec(program=name, uploads=Uploads("0" * 64), working_dir="."))


@given(st.text(max_size=40))
def test_an_accepted_name_stays_below_its_folder(name: str) -> None:
    try:
        check_name(name)
    except UsageError:
        return
    assert os.path.normpath(f"/slot/job/{name}") == f"/slot/job/{name}"


def test_a_list_that_contradicts_itself_is_refused() -> None:
    file = UploadedFile("a", "0" * 64, 1)
    other = msgspec.structs.replace
    for files, words in (
        ((file, file), "two uploaded files"),
        ((file, other(file, name="a/b")), "a file and a folder"),
        ((other(file, sha256="0"),), "no SHA-256"),
        ((other(file, size_bytes=-1),), "no SHA-256 or no size"),
    ):
        with pytest.raises(UsageError, match=words):
            read_manifest(msgspec.json.encode(Manifest(files)))
    with pytest.raises(UsageError, match="format 9"):
        read_manifest(msgspec.json.encode(Manifest(format=9)))
