"""Counts the instructions that this process executes outside of the kernel, where Linux and the processor allow it.

CPU seconds of one program differ by a factor of two on a shared machine, its instructions by one in a hundred. They count
what the interpreter does, and not how long the processor waits for memory.
"""

import ctypes
import os
import platform
import struct
from functools import cache

_SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241}
"""The number of `perf_event_open`, which the C library has no function for."""
_ATTRIBUTES = 128
_TYPE_HARDWARE, _INSTRUCTIONS = 0, 1
_WITHOUT_KERNEL_AND_HYPERVISOR = 1 << 5 | 1 << 6


def instructions() -> int | None:
    """Return how many this process's main thread has executed since the first call. None where they cannot be counted."""
    descriptor = _counter()
    return None if descriptor is None else int(struct.unpack("Q", os.read(descriptor, 8))[0])


@cache
def _counter() -> int | None:
    number = _SYSTEM_CALLS.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return None
    attributes = bytearray(_ATTRIBUTES)
    struct.pack_into("IIQ", attributes, 0, _TYPE_HARDWARE, _ATTRIBUTES, _INSTRUCTIONS)
    struct.pack_into("Q", attributes, 40, _WITHOUT_KERNEL_AND_HYPERVISOR)
    buffer = (ctypes.c_char * _ATTRIBUTES).from_buffer(attributes)
    descriptor = ctypes.CDLL(None).syscall(number, buffer, 0, -1, -1, 0)
    return descriptor if descriptor >= 0 else None
