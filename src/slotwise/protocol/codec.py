"""Frames on the stream between worker and master: one msgpack value each, with the protocol's version in the hello.

A frame is at most :data:`MAX_FRAME_BYTES`. Garbage, unknown tags and other versions raise
:class:`~slotwise.model.errors.ProtocolError` with what is wrong.
"""

from __future__ import annotations

import msgspec

from slotwise.model.errors import ProtocolError
from slotwise.model.ids import WorkerId
from slotwise.protocol.messages import Envelope

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first frame of a worker."""

    worker: WorkerId
    protocol: int
    version: str


class Mail(msgspec.Struct, frozen=True, tag=True):
    """Messages between components, in the order in which they were sent."""

    envelopes: tuple[Envelope, ...]


class LogData(msgspec.Struct, frozen=True, tag=True):
    """Output of a job's process: ``data`` belongs at byte ``offset`` of the job's log file ``name``."""

    job: str
    name: str
    offset: int
    data: bytes


class LogPosition(msgspec.Struct, frozen=True, tag=True):
    """The master's answer to a chunk: it has ``size`` bytes of that file; send on from there."""

    job: str
    name: str
    size: int


Frame = Hello | Mail | LogData | LogPosition

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """The bytes of a frame. Raises :class:`ProtocolError` when it is too large to send."""
    data = _encoder.encode(frame)
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return data


def decode(data: bytes) -> Frame:
    """The frame in ``data``. Raises :class:`ProtocolError` for anything that is not one."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a frame of protocol version {PROTOCOL_VERSION}: {error}") from error
