"""Resources, requirements, the matching rule, timers, the codec and fencing: the parts that everything else is made
of.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.model.errors import ProtocolError, SizeError
from slotwise.model.ids import RESOURCE_MANAGER, Address, LeaderToken
from slotwise.model.requirements import Requirement, counts_of, match_slots, requirements_of
from slotwise.model.resources import (
    GIB,
    MIB,
    ZERO,
    ResourceProfile,
    fits,
    format_bytes,
    format_cpu,
    parse_bytes,
    parse_cpu,
    times_fitting,
)
from slotwise.model.timers import Timers
from slotwise.protocol import codec
from slotwise.protocol.effects import Effects
from slotwise.protocol.messages import Envelope, Fenced, JobDone, RegisterWorker, SlotReport, WorkerReport
from slotwise.protocol.outbox import Outbox

SMALL = ResourceProfile(1000, GIB)
LARGE = ResourceProfile(2000, 4 * GIB)

profiles = st.builds(
    ResourceProfile.of,
    st.integers(0, 8000),
    st.integers(0, 2**40),
    st.dictionaries(st.sampled_from(["fpga", "gpu"]), st.integers(0, 4)),
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("512m", 512 * MIB),
        ("4g", 4 * GIB),
        ("4G", 4 * GIB),
        ("1024", 1024),
        ("1kb", 1024),
        ("2 gib", 2 * GIB),
        ("7b", 7),
    ],
)
def test_sizes_are_read_as_spark_writes_them(text: str, amount: int) -> None:
    assert parse_bytes(text, "memory") == amount


def test_a_bare_number_takes_the_default_unit() -> None:
    assert parse_bytes("512", "overhead", default_unit="m") == 512 * MIB


@pytest.mark.parametrize("text", ["", "-1g", "1.5g", "4 apples", "g", "1e3m"])
def test_sizes_that_are_none_are_refused_with_the_setting_named(text: str) -> None:
    with pytest.raises(SizeError, match="--executor-memory"):
        parse_bytes(text, "--executor-memory")


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("0.5", 500), ("2.25", 2250), ("0.001", 1)])
def test_cores_are_milli_cores(text: str, milli: int) -> None:
    assert parse_cpu(text, "cores") == milli


@pytest.mark.parametrize("text", ["", "-1", "1.0001", "one", "1,5"])
def test_cores_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SizeError):
        parse_cpu(text, "cores")


def test_sizes_are_shown_exactly_in_whole_units() -> None:
    assert format_bytes(1408 * MIB) == "1408 MiB"
    assert format_bytes(10 * GIB) == "10 GiB"
    assert format_bytes(0) == "0 B"
    assert format_cpu(500) == "0.5 CPU"


def test_negative_resources_do_not_exist() -> None:
    with pytest.raises(SizeError):
        ResourceProfile(-1, 0)
    with pytest.raises(SizeError):
        _ = SMALL - LARGE


@given(profiles, profiles)
def test_what_is_taken_and_what_is_left_add_up(whole: ResourceProfile, part: ResourceProfile) -> None:
    if fits(part, whole):
        assert (whole - part) + part == whole
    else:
        with pytest.raises(SizeError):
            _ = whole - part


@given(profiles, profiles, st.integers(0, 50))
def test_times_fitting_is_the_largest_count_that_fits(size: ResourceProfile, room: ResourceProfile, limit: int) -> None:
    count = times_fitting(size, room, limit)
    assert 0 <= count <= limit
    assert fits(size * count, room)
    if count < limit:
        assert not fits(size * (count + 1), room)


def test_sm_13_a_larger_slot_does_not_serve_a_smaller_requirement() -> None:
    missing, surplus = match_slots({SMALL: 1}, {LARGE: 1})
    assert missing == {SMALL: 1}
    assert surplus == {LARGE: 1}


def test_an_unknown_profile_takes_what_exact_ones_leave() -> None:
    missing, surplus = match_slots({None: 2, SMALL: 1}, {SMALL: 2, LARGE: 1})
    assert missing == {}
    assert surplus == {}


counts = st.dictionaries(st.sampled_from([SMALL, LARGE, ResourceProfile(500, MIB)]), st.integers(1, 5))


@given(counts, counts, st.integers(0, 4))
def test_matching_uses_every_slot_once_and_misses_nothing_that_is_there(
    required: dict[ResourceProfile, int], held: dict[ResourceProfile, int], unknown: int
) -> None:
    wanted: dict[ResourceProfile | None, int] = {None: unknown} if unknown else {}
    wanted.update(required.items())
    missing, surplus = match_slots(wanted, held)
    served = sum(wanted.values()) - sum(missing.values())
    assert served + sum(surplus.values()) == sum(held.values())
    for profile in missing:
        assert surplus.get(profile, 0) == 0 if profile is not None else not surplus


def test_requirements_keep_their_order_and_drop_zeros() -> None:
    ordered = requirements_of({SMALL: 2, None: 1, LARGE: 3, ResourceProfile(1, 1): 0})
    assert ordered == (Requirement(SMALL, 2), Requirement(None, 1), Requirement(LARGE, 3))
    assert counts_of(ordered) == {LARGE: 3, SMALL: 2, None: 1}
    assert list(match_slots(counts_of(ordered), {LARGE: 1})[0]) == [SMALL, None, LARGE]


def test_a_requirement_of_none_or_fewer_is_refused() -> None:
    for count in (0, -1):
        with pytest.raises(SizeError):
            Requirement(SMALL, count)


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    timers = Timers()
    timers.set("b", 2.0)
    timers.set(("a", 1), 1.0)
    timers.set_once("b", 9.0)
    assert timers.next() == 1.0
    assert timers.pop_due(2.0) == [("a", 1), "b"]
    assert timers.next() is None


_timer_steps = st.lists(
    st.tuples(st.sampled_from(["set", "set_once", "clear", "pop"]), st.integers(0, 5), st.integers(0, 9)), max_size=300
)


@given(_timer_steps)
def test_timers_do_what_a_sorted_list_of_deadlines_would(steps: list[tuple[str, int, int]]) -> None:
    timers = Timers()
    model: dict[int, int] = {}
    for kind, key, at in steps:
        if kind == "set":
            timers.set(key, at)
            model[key] = at
        elif kind == "set_once":
            timers.set_once(key, at)
            model.setdefault(key, at)
        elif kind == "clear":
            timers.clear(key)
            model.pop(key, None)
        else:
            due = sorted((key for key, when in model.items() if when <= at), key=model.__getitem__)
            assert timers.pop_due(at) == due
            for one in due:
                del model[one]
        assert timers.next() == min(model.values(), default=None)
        assert {key for key in range(6) if timers.is_set(key)} == set(model)


def test_timers_that_are_moved_again_and_again_do_not_pile_up() -> None:
    timers = Timers()
    timers.set("first", 0.0)
    for i in range(10_000):
        timers.set("moved", 1.0 + i)
    assert len(timers._heap) < 100


def _envelope(payload: object = JobDone("job-1"), **changes: object) -> Envelope:  # type: ignore[arg-type]
    envelope = Envelope(1, RESOURCE_MANAGER, LeaderToken(5), Address("jm:job-1"), LeaderToken(3), payload)  # type: ignore[arg-type]
    return msgspec.structs.replace(envelope, **changes)


def test_a_frame_comes_back_as_it_was() -> None:
    report = SlotReport(3, (), ResourceProfile.of(1, 2, {"gpu": 1}))
    mail = codec.Mail((_envelope(WorkerReport(report)),))
    assert codec.decode(codec.encode(mail)) == mail


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xc1", codec.encode(codec.Mail(()))[:-1]])
def test_garbage_on_the_stream_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(data)


def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        codec.encode(codec.LogData("job-1", "driver-1.out", 0, bytes(codec.MAX_FRAME_BYTES)))
    with pytest.raises(ProtocolError, match="limit"):
        codec.decode(bytes(codec.MAX_FRAME_BYTES + 1))


def test_ml_07_a_message_for_an_old_leadership_is_answered_fenced() -> None:
    outbox, effects = Outbox(RESOURCE_MANAGER, LeaderToken(5)), Effects()
    assert not outbox.admit(_envelope(to_token=LeaderToken(4)), effects)
    assert [message.payload for message in effects.send] == [Fenced(RESOURCE_MANAGER, LeaderToken(5))]


def test_d_03_a_message_of_a_replaced_sender_is_answered_fenced() -> None:
    outbox, effects = Outbox(RESOURCE_MANAGER, LeaderToken(5)), Effects()
    outbox.learn(Address("jm:job-1"), LeaderToken(4))
    assert not outbox.admit(_envelope(), effects)
    assert [message.payload for message in effects.send] == [Fenced(Address("jm:job-1"), LeaderToken(4))]


def test_fenced_is_never_answered_with_fenced() -> None:
    outbox, effects = Outbox(RESOURCE_MANAGER, LeaderToken(5)), Effects()
    stale = _envelope(Fenced(RESOURCE_MANAGER, LeaderToken(1)), to_token=LeaderToken(1))
    assert not outbox.admit(stale, effects)
    assert effects.send == []


def test_only_an_introduction_may_leave_the_token_open() -> None:
    outbox, effects = Outbox(RESOURCE_MANAGER, LeaderToken(5)), Effects()
    register = RegisterWorker("w", "h", 1, "v", SMALL, SMALL, SlotReport(1, (), ZERO))  # type: ignore[arg-type]
    open_one = _envelope(register, to_token=LeaderToken(0), sender_token=LeaderToken(0))
    assert outbox.admit(open_one, effects, introduces=True)
    assert not outbox.admit(open_one, effects)
