"""Sizes and counts from Spark configuration and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.model.errors import ConfigError, SizeError
from slotwise.model.resources import GIB, MIB
from slotwise.spark.conf import job_sizes, parse_conf_options, parse_properties, read_properties_file

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


def test_sparks_defaults() -> None:
    sizes = job_sizes({})
    assert (sizes.driver.cores, sizes.driver.heap_bytes, sizes.driver.overhead_bytes) == (1, GIB, 384 * MIB)
    assert (sizes.executor.cores, sizes.executor.heap_bytes, sizes.executor.overhead_bytes) == (1, GIB, 384 * MIB)
    assert (sizes.executor.off_heap_bytes, sizes.executor.python_bytes, sizes.executor.extended) == (0, 0, ())
    assert (sizes.min_executors, sizes.initial_executors, sizes.max_executors) == (1, 2, None)
    assert not sizes.dynamic_allocation


def test_options_win_over_conf() -> None:
    conf = {
        "spark.executor.memory": "3g",
        "spark.executor.cores": "3",
        "spark.driver.memory": "3g",
        "spark.executor.instances": "7",
    }
    sizes = job_sizes(
        conf, executor_memory="2g", executor_cores=2, driver_memory="700m", driver_cores=2, num_executors=4
    )
    assert (sizes.executor.cores, sizes.executor.heap_bytes) == (2, 2 * GIB)
    assert (sizes.driver.cores, sizes.driver.heap_bytes) == (2, 700 * MIB)
    assert sizes.initial_executors == 4


@pytest.mark.parametrize(
    ("conf", "overhead_mib"),
    [
        ({}, 1024),
        ({"spark.executor.memoryOverheadFactor": "0.25"}, 2560),
        ({"spark.executor.memoryOverheadFactor": "0.01"}, 384),
        ({"spark.executor.minMemoryOverhead": "2g"}, 2048),
        ({"spark.executor.memoryOverhead": "100"}, 100),
        ({"spark.executor.memoryOverhead": "1g", "spark.executor.memoryOverheadFactor": "0.5"}, 1024),
    ],
)
def test_overhead(conf: dict[str, str], overhead_mib: int) -> None:
    assert job_sizes({"spark.executor.memory": "10g", **conf}).executor.overhead_bytes == overhead_mib * MIB


def test_memory_beside_the_heap_and_other_resources() -> None:
    executor = job_sizes(
        {
            "spark.memory.offHeap.enabled": "true",
            "spark.memory.offHeap.size": str(100 * MIB + 5),
            "spark.executor.pyspark.memory": "300",
            "spark.executor.resource.gpu.amount": "2",
            "spark.executor.resource.fpga.amount": "0",
        }
    ).executor
    assert executor.off_heap_bytes == 100 * MIB
    assert executor.python_bytes == 300 * MIB
    assert executor.extended == (("gpu", 2),)
    assert executor.profile.memory_bytes == (1024 + 384 + 100 + 300) * MIB
    assert job_sizes({"spark.memory.offHeap.size": "1g"}).executor.off_heap_bytes == 0


@pytest.mark.parametrize(
    ("conf", "options", "expected"),
    [
        ({"spark.executor.instances": "5"}, {}, (1, 5, None)),
        ({}, {"min_executors": 4}, (4, 4, None)),
        ({}, {"min_executors": 1, "max_executors": 6}, (1, 6, 6)),
        ({}, {"min_executors": 2, "max_executors": 6, "num_executors": 3}, (2, 3, 6)),
        (DYNAMIC, {}, (0, 0, None)),
        (DYNAMIC | {"spark.executor.instances": "3"}, {}, (0, 3, None)),
        (DYNAMIC, {"min_executors": 2, "max_executors": 5}, (2, 2, 5)),
        (
            DYNAMIC
            | {
                "spark.dynamicAllocation.minExecutors": "1",
                "spark.dynamicAllocation.initialExecutors": "4",
                "spark.dynamicAllocation.maxExecutors": "9",
            },
            {},
            (1, 4, 9),
        ),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "2147483647"}, {}, (0, 0, None)),
    ],
)
def test_bounds(conf: dict[str, str], options: dict[str, int], expected: tuple[int, int, int | None]) -> None:
    sizes = job_sizes(
        conf,
        num_executors=options.get("num_executors"),
        min_executors=options.get("min_executors"),
        max_executors=options.get("max_executors"),
    )
    assert (sizes.min_executors, sizes.initial_executors, sizes.max_executors) == expected


@pytest.mark.parametrize(
    ("conf", "options", "words"),
    [
        ({"spark.executor.memory": "449m"}, {}, "450 MiB"),
        ({"spark.driver.memory": "100m"}, {}, "spark.driver.memory=100m"),
        ({}, {"executor_memory": "lots"}, "--executor-memory"),
        ({}, {"executor_memory": "-1g"}, "not a memory size"),
        ({"spark.executor.cores": "0"}, {}, "at least 1"),
        ({}, {"driver_cores": 0}, "--driver-cores"),
        ({"spark.executor.instances": "many"}, {}, "not a whole number"),
        ({"spark.task.cpus": "2"}, {}, "spark.task.cpus=2"),
        ({"spark.memory.offHeap.enabled": "true"}, {}, "offHeap.size"),
        ({"spark.executor.memoryOverheadFactor": "x"}, {}, "not a number"),
        ({}, {"num_executors": 0}, "at least 1"),
        ({}, {"min_executors": 0}, "dynamic allocation"),
        ({}, {"min_executors": 5, "max_executors": 4}, "below"),
        ({}, {"num_executors": 2, "min_executors": 3}, "above"),
        ({}, {"max_executors": -1}, "negative"),
        (DYNAMIC, {"min_executors": 5, "max_executors": 4}, "below"),
        (DYNAMIC | {"spark.executor.instances": "5"}, {"max_executors": 4}, "below"),
    ],
)
def test_what_cannot_be_used_is_refused(conf: dict[str, str], options: dict[str, object], words: str) -> None:
    with pytest.raises(SizeError, match=words):
        job_sizes(conf, **options)  # type: ignore[arg-type]


def test_keys_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="--jars"):
        job_sizes({"spark.jars.packages": "a:b:1"})
    with pytest.raises(ConfigError, match="true or false"):
        job_sizes({"spark.dynamicAllocation.enabled": "yes"})


def test_conf_options() -> None:
    assert parse_conf_options(["spark.a=b=c", "spark.x= y ", "spark.a=d"]) == {"spark.a": "d", "spark.x": "y"}
    for wrong in ("spark.a", "=x", "executor.cores=2"):
        with pytest.raises(ConfigError, match="--conf"):
            parse_conf_options([wrong])


def test_properties_file(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.write_text(
        "# comment\nspark.a  one two \nspark.b=2\n! no\nspark.c : 3\nother=4\nspark.d=x\\\n   y\n\nspark.e\n"
    )
    expected = {"spark.a": "one two", "spark.b": "2", "spark.c": "3", "spark.d": "xy", "spark.e": ""}
    assert read_properties_file(file) == expected
    with pytest.raises(ConfigError, match="cannot read"):
        read_properties_file(tmp_path / "none")


def test_properties_escapes() -> None:
    assert parse_properties("a\\ b = \\u0041\\tc\\\\d\r\nk\\=1:v") == {"a b": "A\tc\\d", "k=1": "v"}
