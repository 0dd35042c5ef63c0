"""``python -m agentroute.demo.server``: llama.cpp's own HTTP server with the small model, on 127.0.0.1.

Prints ``LISTENING http://127.0.0.1:PORT`` once it listens. Stops on SIGTERM or SIGINT, and when the pipe on its
standard input closes, so that it never outlives the process that started it.
"""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from agentroute.demo.embedded import MODEL_ALIAS, find_model
from agentroute.errors import UsageError

_QUIET = 1
"""llama.cpp's log verbosity: errors only."""


def main() -> int:
    """Serve until told to stop; the exit status is 0, or 2 with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m agentroute.demo.server", description=__doc__)
    parser.add_argument("--ctx", type=int, default=2048, help="KV memory in tokens, split over the slots")
    parser.add_argument("--slots", type=int, default=1, help="requests that run at once")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute")
    parser.add_argument("--unified", action="store_true", help="let every slot use the whole KV memory")
    parser.add_argument("--embeddings", action="store_true", help="embed texts, by the mean over their tokens")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--jinja-template", type=Path, help="a chat template instead of the model's own")
    parser.add_argument("--temperature", type=float, help="of requests that name none")
    arguments = parser.parse_args()
    # Before the server starts: a signal that comes while the model loads must end it, too.
    stop = threading.Event()
    _stop_on_signals(stop)
    _stop_with_parent(stop)
    try:
        serve(arguments, stop)
    except (UsageError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def serve(arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Run the server until ``stop`` is set."""
    model = find_model()
    xllamacpp: Any = import_module("xllamacpp")  # it has no type hints
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {MODEL_ALIAS}
    params.n_ctx, params.n_parallel, params.kv_unified = arguments.ctx, arguments.slots, arguments.unified
    params.port = arguments.port
    if arguments.embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN  # else it embeds single tokens
    params.endpoint_metrics = params.endpoint_slots = params.use_jinja = params.offline = True
    params.ui = False
    params.cache_ram_mib = 0  # a cache of old prompts beside the KV memory, else up to 8 GiB
    params.verbosity = _QUIET
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    if arguments.jinja_template:
        params.chat_template = arguments.jinja_template.read_text(encoding="utf-8")
    if arguments.temperature is not None:
        params.sampling.temp = arguments.temperature
    server = xllamacpp.Server(params)
    _stop_on_signals(stop)  # again: llama.cpp has put a handler of its own on SIGINT
    print("LISTENING", server.listening_address, flush=True)
    stop.wait()


def _stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def _stop_with_parent(stop: threading.Event) -> None:
    """Set ``stop`` when the pipe on standard input closes; a terminal, a file or /dev/null is no parent's pipe."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return

    def wait() -> None:
        while os.read(0, 4096):
            pass
        stop.set()

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
