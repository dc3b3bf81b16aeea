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
# Close codes of our own (RFC 6455 leaves 4000 … 4999 to applications). After the first, a worker ends: trying again
# will not help. After the second it dials again: what it runs must not suffer for one bad frame.
CLOSE_REFUSED = 4400
CLOSE_BAD_FRAME = 4402


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first frame of a worker."""

    worker: WorkerId
    protocol: int
    version: str


class Mail(msgspec.Struct, frozen=True, tag=True):
    """Messages between components, in the order in which they were sent."""

    envelopes: tuple[Envelope, ...]


class LogData(msgspec.Struct, frozen=True, tag=True):
    """Output of a job's process: ``data`` belongs at byte ``offset`` of the job's log file ``name``. Without a ``job``
    it is of the worker's own log, of which only what is recent is sent, and which is not asked for again.
    """

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


def encode_split(frame: Frame) -> tuple[list[bytes], list[str]]:
    """The bytes of a frame, in several frames when mail is too large for one; and what could not be sent because a
    single message is over the limit, in words. One large message must not hold up those beside it.
    """
    try:
        return [encode(frame)], []
    except ProtocolError as error:
        if not isinstance(frame, Mail) or len(frame.envelopes) < 2:
            return [], [f"{_words(frame)}: {error}"]
    middle = len(frame.envelopes) // 2
    first, left_out = encode_split(Mail(frame.envelopes[:middle]))
    second, left_out_too = encode_split(Mail(frame.envelopes[middle:]))
    return first + second, left_out + left_out_too


def _words(frame: Frame) -> str:
    if isinstance(frame, Mail):
        return ", ".join(f"{type(letter.payload).__name__} to {letter.to}" for letter in frame.envelopes)
    return type(frame).__name__


def decode(data: bytes) -> Frame:
    """The frame in ``data``. Raises :class:`ProtocolError` for anything that is not one."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a frame of protocol version {PROTOCOL_VERSION}: {error}") from error
