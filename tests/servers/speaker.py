"""A server that says what a test wants, whatever its clients say."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


@contextmanager
def speaker(first: bytes, answer: bytes | None = None, port: int = 0) -> Iterator[int]:
    """Accept connections on a port: say something, and after what a client says the answer, then close. Gives the port."""
    with socket.create_server(("127.0.0.1", port)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(first)
                    if answer is not None:
                        connection.recv(4096)
                        connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
