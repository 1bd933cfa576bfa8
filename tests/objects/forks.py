"""Runs the command line in forked children: a request a line on standard input, an exit status a line on output.

A request is JSON: ``arguments`` of ``fusionkit``; ``environment`` to set (null removes); ``folder`` for ``out`` and
``err``, what the child printed; ``chunk_bytes``; packages it is ``without``; ``to_the_end``, whether Python itself is
taken down as usual. A child is ended before its time ``after`` so many seconds, or at the ``moment`` when it is about
to send an S3 request whose operation and keys hold all these words, by the signal ``end``. One that was stopped so
(SIGSTOP) is answered for by its process id, and is the caller's to end.

Imports are done once; each child is a process of its own that begins in the command's entry point.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fusionkit.cli.main import COMMANDS, main
from fusionkit.encoder import load_encoder
from fusionkit.io import places
from fusionkit.store import layout

for name in ("s3fs", *(f"fusionkit.cli.{command}" for command in COMMANDS)):
    importlib.import_module(name)
load_encoder(sys.argv[1], device="cpu")  # what transformers imports when it is used


def end_at(words: list[str], how: int) -> None:
    """End this process when it is about to send such a request."""
    client: Any = importlib.import_module("aiobotocore.client").AioBaseClient
    really = client._make_api_call

    async def send(self: Any, operation: str, given: dict[str, Any]) -> Any:
        keys = [given.get("Key", ""), *(each["Key"] for each in given.get("Delete", {}).get("Objects", []))]
        if all(any(word in told for told in (operation, *keys)) for word in words):
            os.kill(os.getpid(), how)
        return await really(self, operation, given)

    client._make_api_call = send


def run(request: dict[str, Any]) -> None:
    """The child: it does not return."""
    for name, value in request["environment"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with (Path(request["folder"]) / name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    layout.CHUNK_BYTES = request["chunk_bytes"]
    places.WRITES_AT_ONCE = 1  # rclone's server, asked to write several objects at once, now and then answers none
    if request["moment"]:
        end_at(request["moment"], request["end"])
    # One that hangs says in ``err`` where, and ends.
    faulthandler.dump_traceback_later(300, exit=True)
    sys.argv = ["fusionkit", *request["arguments"]]
    sys.modules.update(dict.fromkeys(request["without"]))  # to import None is an ImportError
    if request["to_the_end"]:
        main()
    status: Any = 1
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # taking down what was imported before the fork takes longer than the command


def answer(request: dict[str, Any]) -> int:
    """A child's exit status as shells have it, negative for a signal; or the process id of one that was stopped."""
    child = os.fork()
    if child == 0:
        run(request)
    if request["after"] is not None:
        time.sleep(request["after"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, os.WUNTRACED)
    return child if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


assert threading.active_count() == 1, "a process with threads cannot be forked"
print("ready", flush=True)
for line in sys.stdin:
    print(answer(json.loads(line)), flush=True)
