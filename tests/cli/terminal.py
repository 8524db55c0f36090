"""A terminal that runs commands, in this process or in a process of its own."""

import codecs
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceonly.cli import main
from tests.cli.written_modules import forget_modules

PROGRAM = (sys.executable, "-m", "onceonly")


class Done:
    """What a command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def answer(self) -> Any:
        """Read standard output as one JSON document; anything else on it is an error."""
        try:
            return json.loads(self.out)
        except ValueError as no_json:
            raise AssertionError(f"exit {self.code}, printed {self.out!r}, and on standard error: {self.err}") from no_json

    @property
    def error(self) -> str:
        """The one error line. Fails when there is a traceback instead."""
        assert "Traceback" not in self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line


@contextmanager
def logging_restored() -> Iterator[None]:
    """Undo what a command has set up: the handlers of the root logger, and the levels of all loggers."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in ["", *root.manager.loggerDict]}
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for name in ["", *root.manager.loggerDict]:
            logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


class Terminal:
    """Runs commands in one directory."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        """Run a command in this process. It imports the programs anew, as a process of its own would."""
        forget_modules(self.folder)
        self._capsys.readouterr()
        with logging_restored(), pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, out, err)

    def write(self, name: str, lines: Sequence[object]) -> str:
        """Write a file of JSON Lines."""
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return name

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """Ask a database that the commands wrote."""
        with closing(sqlite3.connect(self.folder / database)) as connection:
            return connection.execute(query).fetchall()

    def change(self, database: str, statement: str, values: Sequence[object] = ()) -> None:
        """Change a database behind the commands' back."""
        with closing(sqlite3.connect(self.folder / database)) as connection, connection:
            connection.execute(statement, values)

    def start(self, *arguments: str, program: Sequence[str] = PROGRAM) -> "subprocess.Popen[str]":
        """Start a command in a process of its own; standard error comes on its standard output."""
        return subprocess.Popen(
            [*program, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


class Running:
    """A command that runs, and what it has said so far.

    A thread reads all the time, since a command whose output nobody reads stops when the pipe is full.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said = ""
        self._known = 0
        self._is_over = False
        self._more = threading.Condition()
        assert process.stdout is not None
        output = os.dup(process.stdout.fileno())  # whoever has started it closes the other one
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    def until(self, words: str, times: int = 1) -> str:
        """Read on until a line has these words for the `times`-th time from here on; gives that line."""
        while True:
            line = self._next("\n")
            times -= words in line
            if not times:
                return line
            if not line:
                raise AssertionError(f"it ended without saying {words!r}:\n{self.said}")

    def until_prompt(self, prompt: str) -> None:
        """Read on until it has written this, and waits for a line."""
        assert self._next(prompt).endswith(prompt), self.said

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the parent, and give its exit code."""
        self.process.send_signal(number)
        self.end()
        return self.process.returncode

    def end(self) -> str:
        """Wait until it has ended; gives what it has said since `until`."""
        self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        assert self._is_over, "it has left a process that writes"
        return self.said[self._known :]

    def _next(self, end: str) -> str:
        """Return what comes next, up to and with `end`; the rest if it has ended."""
        begin = self._known
        with self._more:
            self._more.wait_for(lambda: self._is_over or end in self.said[begin:])
            found = self.said.find(end, begin)
        self._known = len(self.said) if found < 0 else found + len(end)
        return self.said[begin : self._known]

    def _read(self, output: int) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while more := os.read(output, 65536):
            with self._more:
                self.said += decoder.decode(more)
                self._more.notify_all()
        os.close(output)
        with self._more:
            self._is_over = True
            self._more.notify_all()


@contextmanager
def running(onceonly: Terminal, *arguments: str, program: Sequence[str] = PROGRAM) -> Iterator[Running]:
    """Run a command; whatever happens, it is over at the end."""
    with onceonly.start("run", *arguments, program=program) as process:
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()
