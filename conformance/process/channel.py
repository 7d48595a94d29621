"""Carries messages from a child process to its parent: frames that nothing else which reaches the pipe can imitate.

A frame is the key of the channel, the length of the message, its checksum, and the message in JSON. The parent draws
the key for each child and sends it with the task. So bytes that a model writes to file descriptors that it does not own
are seen as damage, and never as a message. The key is no secret from code that looks for it in its own process.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from typing import Any

KEY_BYTES = 16
FIRST_BYTE = b"\xf8"  # no text in UTF-8 and no pickle begins with it, so theirs is seen as damage at once
HEADER = struct.Struct(f">{KEY_BYTES}sQI")  # key, length, CRC-32
MAX_MESSAGE_BYTES = 64 * 2**20
READ_BYTES = 2**16


class DamageError(ValueError):
    """What arrived is no frame of this channel, or is cut off. The message says what was found."""


def new_key() -> bytes:
    """A key for one child."""
    return FIRST_BYTE + secrets.token_bytes(KEY_BYTES - len(FIRST_BYTE))


def frame(key: bytes, message: Any) -> bytes:
    """The frame of a message.

    Raises:
        TypeError, ValueError: JSON cannot hold the message, or it is too long.
    """
    body = json.dumps(message, allow_nan=False).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes; at most {MAX_MESSAGE_BYTES}")
    return HEADER.pack(key, len(body), zlib.crc32(body)) + body


def write(descriptor: int, data: bytes) -> None:
    """Write all bytes to a pipe.

    Raises:
        OSError: nobody reads the pipe, or it is closed.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class Sender:
    """The child's end of a channel. Only the process that made it sends; a copy of that process does not.

    Args:
        descriptor: the pipe to the parent.
        key: the key of the channel.
    """

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor = descriptor
        self._key = key
        self._owner = os.getpid()

    def send(self, **message: Any) -> None:
        """Send a message. In a forked copy of the process, end that copy: its original speaks.

        Raises:
            TypeError, ValueError: JSON cannot hold the message, or it is too long.
            OSError: nobody reads the pipe, or it is closed.
        """
        if os.getpid() != self._owner:
            os._exit(1)
        write(self._descriptor, frame(self._key, message))


class Receiver:
    """The parent's end of a channel.

    Args:
        descriptor: the pipe from the child.
        key: the key of the channel.

    Attributes:
        halfway: a frame has begun and is not complete.
    """

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor = descriptor
        self._key = key
        self._buffer = bytearray()

    @property
    def halfway(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._buffer)

    def messages(self) -> Iterator[Any]:
        """Every message, as it arrives, until nobody can write to the pipe.

        Raises:
            DamageError: something else arrived, or the end came in the middle of a frame.
        """
        while True:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except OSError as problem:
                raise DamageError(f"its channel cannot be read: {problem}") from None
            if not data:
                if self._buffer:
                    raise DamageError(f"its last message breaks off after {len(self._buffer)} bytes")
                return
            self._buffer += data
            yield from self._complete()

    def _complete(self) -> Iterator[Any]:
        """The messages whose frames have arrived whole."""
        while self._buffer:
            start = bytes(self._buffer[:KEY_BYTES])
            if not self._key.startswith(start):
                raise DamageError("bytes that are no message arrived in its channel")
            if len(self._buffer) < HEADER.size:
                return
            _, length, checksum = HEADER.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                raise DamageError(f"it announced a message of {length} bytes; at most {MAX_MESSAGE_BYTES}")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            if zlib.crc32(body) != checksum:
                raise DamageError("a message in its channel is damaged")
            try:
                yield json.loads(body)
            except (ValueError, RecursionError):
                raise DamageError("a message in its channel is no JSON") from None
