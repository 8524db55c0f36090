"""What a driver raises when it trips over a connection that was cut or garbled: errors of Python's own, of any family.

Which one depends on the moment, the driver's version and the event loop. Catch these where a driver is called, and nowhere
else; this library's own errors are not among them.
"""

TRIPPED: tuple[type[Exception], ...] = (
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
