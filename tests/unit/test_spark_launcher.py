"""Units of extended resources: no two slots share one. What a launcher remembers for the worker's next process."""

from __future__ import annotations

import asyncio
import json

import msgspec

from slotwise.model.ids import AllocationId
from slotwise.model.process import DriverReport
from slotwise.spark.bridge import BridgeServer
from slotwise.spark.launcher import ResourceAddresses, SparkLauncher

A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")


def test_every_slot_has_units_of_its_own_and_gives_them_back() -> None:
    addresses = ResourceAddresses((("fpga", 1), ("gpu", 3)))
    assert addresses.give(A, (("gpu", 2),)) == {"gpu": ("0", "1")}
    assert addresses.give(B, (("fpga", 1), ("gpu", 1))) == {"fpga": ("0",), "gpu": ("2",)}
    addresses.take_back(A)
    addresses.take_back(A)
    assert addresses.give(C, (("gpu", 1),)) == {"gpu": ("0",)}


def test_units_that_a_slot_was_given_by_an_earlier_process_are_nobody_elses() -> None:
    addresses = ResourceAddresses((("gpu", 3),))
    addresses.give_again(A, {"gpu": ["1"]})
    assert addresses.give(B, (("gpu", 2),)) == {"gpu": ("0", "2")}
    addresses.take_back(A)
    assert addresses.give(C, (("gpu", 1),)) == {"gpu": ("1",)}


def test_st_09_a_driver_reports_to_the_next_process_of_its_worker_with_the_token_it_has() -> None:
    reports: list[tuple[AllocationId, DriverReport]] = []

    async def hello(port: int, token: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = [{"hello": {"token": token, "protocol": 1}}, {"report": msgspec.to_builtins(DriverReport(1, "app-1"))}]
        writer.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        await writer.drain()
        writer.write_eof()
        rest = await reader.read()
        writer.close()
        return rest

    async def run() -> None:
        first = BridgeServer(lambda _slot, _report: None)
        await first.start()
        token = first.admit(A)
        # Through JSON, as on disk.
        remembered = json.loads(json.dumps(SparkLauncher(first, "127.0.0.1").remembered(A)))
        assert SparkLauncher(first, "127.0.0.1").remembered(B)["driver"] == {}
        taken = BridgeServer(lambda _slot, _report: None)
        await taken.start(first.port)
        assert taken.port != first.port
        reason = SparkLauncher(taken, "127.0.0.1").adopt(A, remembered)
        assert f"could not have port {first.port} again" in reason
        await first.close()
        await taken.close()
        second = BridgeServer(lambda slot, report: reports.append((slot, report)))
        await second.start(first.port)
        await hello(second.port, token)
        assert reports == []
        assert SparkLauncher(second, "127.0.0.1").adopt(A, remembered) == ""
        await hello(second.port, token)
        await second.close()

    asyncio.run(run())
    assert reports == [(A, DriverReport(1, "app-1"))]
