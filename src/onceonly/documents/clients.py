"""Errors that drivers raise by accident."""

__all__ = ["DRIVER_FAULTS"]

DRIVER_FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StopAsyncIteration,
    TypeError,
    ValueError,
)
"""Built-in errors that drivers raise when a connection breaks or its data is garbled.

Which one is raised depends on the moment, the driver's version and the event loop. Catch them around calls of a driver, and
nowhere else. They leave the outcome of a write unknown. Errors of this library are not among them.
"""
