"""The worker process of the local Functions host: `python -m examples.hosts.functions_worker MODULE`.

It does what Azure's Python worker does. It imports the module once and lists the functions of its `app`. Each line of JSON that
it reads is an invocation. The converters of `azure.functions` make the trigger's object. An `async def` runs in its one event
loop, a `def` in a pool of threads. It prints `ready`, and a line of JSON with the outcome of each invocation.
"""

import asyncio
import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Any

import azure.functions as func
from azure.functions import meta

THREADS = 4
"""The default of PYTHON_THREADPOOL_THREAD_COUNT is a few more than the machine has cores."""


def datum_of(written: Mapping[str, Any]) -> meta.Datum:
    """Return a value as the host sends it: text, JSON, a number, bytes, a list of bytes, or a request."""
    value = written["value"]
    if written["type"] == "http":
        value = {
            **{name: _text(value[name]) for name in ("method", "url")},
            **{name: {key: _text(each) for key, each in value[name].items()} for name in ("headers", "query")},
            "params": {},
            "body": meta.Datum(b64decode(value["body"]), "bytes"),
        }
    if written["type"] == "bytes":
        value = b64decode(value)
    if written["type"] == "collection_bytes":
        value = SimpleNamespace(bytes=[b64decode(each) for each in value])
    return meta.Datum(value, written["type"])


def _text(value: str) -> meta.Datum:
    return meta.Datum(value, "string")


def printable(returned: Any) -> Any:
    """Return a result as JSON can write it. The library's converter makes the host's form of a response."""
    if not isinstance(returned, func.HttpResponse):
        return returned
    converter = meta.get_binding_registry().get("http")  # type: ignore[no-untyped-call]
    written = converter.encode(returned, expected_type=None).value
    headers = {name: each.value for name, each in written["headers"].items()}
    body = b64encode(returned.get_body()).decode()
    return {"status": int(written["status_code"].value), "headers": headers, "body": body}


async def invoke(function: Any, pool: ThreadPoolExecutor, invocation: Mapping[str, Any]) -> Any:
    """Call a function with what its trigger gives. Returns what it returns."""
    trigger = function.get_trigger()
    converter = meta.get_binding_registry().get(trigger.type)  # type: ignore[no-untyped-call]
    metadata = {name: datum_of(each) for name, each in invocation["metadata"].items()}
    value = converter.decode(datum_of(invocation["data"]), trigger_metadata=metadata)
    call = function.get_user_function()
    if iscoroutinefunction(call):
        return await call(**{trigger.name: value})
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: call(**{trigger.name: value}))


async def answer(function: Any, pool: ThreadPoolExecutor, invocation: Mapping[str, Any]) -> None:
    """Invoke a function, and print what came of it."""
    told: dict[str, Any] = {"invocation": invocation["invocation"]}
    try:
        returned = await invoke(function, pool, invocation)
    except Exception as error:  # noqa: BLE001 - whatever it is, the host gets it
        told["error"] = f"{type(error).__name__}: {error}"
    else:
        told["returned"] = printable(returned)
    os.write(1, f"{json.dumps(told)}\n".encode())


async def main(module: str) -> None:
    """Answer invocations until there is no more input."""
    app: func.FunctionApp = import_module(module).app
    functions = {each.get_function_name(): each for each in app.get_functions()}
    pool, lines = ThreadPoolExecutor(THREADS), asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    os.write(1, b"ready\n")
    running = set[asyncio.Task[None]]()
    while line := await lines.readline():
        invocation = json.loads(line)
        running.add(task := asyncio.create_task(answer(functions[invocation["function"]], pool, invocation)))
        task.add_done_callback(running.discard)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
