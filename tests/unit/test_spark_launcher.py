"""Units of extended resources: no two slots share one."""

from __future__ import annotations

from slotwise.model.ids import AllocationId
from slotwise.spark.launcher import ResourceAddresses

A, B, C = AllocationId("a"), AllocationId("b"), AllocationId("c")


def test_every_slot_has_units_of_its_own_and_gives_them_back() -> None:
    addresses = ResourceAddresses((("fpga", 1), ("gpu", 3)))
    assert addresses.give(A, (("gpu", 2),)) == {"gpu": ("0", "1")}
    assert addresses.give(B, (("fpga", 1), ("gpu", 1))) == {"fpga": ("0",), "gpu": ("2",)}
    addresses.take_back(A)
    addresses.take_back(A)
    assert addresses.give(C, (("gpu", 1),)) == {"gpu": ("0",)}
