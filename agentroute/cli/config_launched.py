"""The servers that a script starts: its ``vllm serve`` and SGLang launch commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentroute.cli.config_writing import Imported, Server
from agentroute.errors import ConfigError, UsageError
from agentroute.fleet import check_url
from agentroute.startup.log import read
from agentroute.startup.names import printable, without_secrets

_MENTIONS = re.compile(r"\bvllm(?:\s+serve\b|\.entrypoints\b|/vllm-openai\b)|\bsglang(?:\s+serve\b|\.launch_server\b)")
_TALK = {"echo", "printf", "grep", "pgrep", "pkill", "alias", "which", "man"}
"""Commands that speak of others."""
_DOCKER = {"docker", "podman", "nerdctl"}
_VLLM_IMAGE = re.compile(r"(?:\S+/)?vllm/vllm-openai(?:[:@]\S+)?")
"""The image whose entrypoint is ``vllm serve``: what follows it are the options."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_CONTROL = re.compile(r"[;&|()]+")
_MOST_LINES = 100
"""A quote that is open for longer is a mistake, and not a text over several lines."""


@dataclass(frozen=True, slots=True)
class _Command:
    """One simple command of a script, which starts a server."""

    line: int
    before: list[str]
    """The words before the launch command: variables, and what it is run by."""
    words: list[str]
    """The launch command itself."""

    def get(self, *names: str) -> str | None:
        """The value of an option that is given as ``--name value`` or ``--name=value``."""
        return next(_values(self.words, *names), None)

    def has(self, *names: str) -> bool:
        """Whether an option is given."""
        return any(word.partition("=")[0] in names for word in self.words)


def launched(text: str, file: Path) -> Imported:
    """What the launch commands in a text say; none: it holds no such command. Raises ``ConfigError``."""
    found = Imported()
    for line, words in _simple(text, file):
        command = _launch(line, words)
        if command is not None:
            _add(found, command, file)
        elif words[0] not in _TALK:
            found.notes.append(f"line {line}: what it starts; the command stands inside of another one's text")
    return found


def _simple(text: str, file: Path) -> Iterator[tuple[int, list[str]]]:
    """The simple commands of a script that name a server, each as its words, with the line that it begins on.

    A backslash at a line's end goes on, as does a quote that is open.
    """
    joined, begun, lines = "", 1, 0
    all_lines = text.splitlines()
    for number, line in enumerate(all_lines, 1):
        if not joined:
            begun, lines = number, 0
        lines += 1
        joined += line.rstrip()
        if joined.endswith("\\") and number < len(all_lines):
            joined = joined[:-1] + " "
            continue
        if _MENTIONS.search(joined):
            try:
                words = _words(joined)
            except ValueError:
                if lines < _MOST_LINES and number < len(all_lines):
                    joined += "\n"
                    continue
                raise ConfigError("is no command line: a quote is not closed", path=file, line=begun) from None
            yield from ((begun, one) for one in _split(words) if _MENTIONS.search(" ".join(one)))
        joined = ""


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    return list(lexer)


def _split(words: Sequence[str]) -> Iterator[list[str]]:
    """Words by the simple command that they belong to, without where it writes to."""
    one: list[str] = []
    to_a_file = False
    for word in words:
        if to_a_file:
            to_a_file = False
        elif _CONTROL.fullmatch(word):
            if one:
                yield one
            one = []
        elif word and not word.strip("<>&|"):
            to_a_file = True
            if one and one[-1] in ("1", "2"):
                one.pop()
        else:
            one.append(word)
    if one:
        yield one


def _launch(line: int, words: list[str]) -> _Command | None:
    """The launch command among the words of a simple command; ``None``: it is none."""
    words = words[1:] if words[0] in ("$", ">") else words  # a prompt
    if not words or words[0] in _TALK:
        return None
    for i, word in enumerate(words):
        name, after = word.rpartition("/")[2], words[i + 1 : i + 2]
        if name in ("vllm", "sglang") and after == ["serve"]:
            return _Command(line, words[:i], [name, *words[i + 1 :]])
        if word == "-m" and after and re.fullmatch(r"vllm\.entrypoints\S*|sglang\.launch_server", after[0]):
            return _Command(line, words[:i], ["python3", *words[i:]])
        if _in_docker(words[:i]) and _VLLM_IMAGE.fullmatch(word) and after != ["vllm"]:
            return _Command(line, words[:i], ["vllm", "serve", *words[i + 1 :]])
    return None


def _add(found: Imported, command: _Command, file: Path) -> None:
    line = command.line
    try:
        started = read(shlex.join(command.words) + "\n")
    except UsageError:
        found.notes.append(f"line {line}: what it serves; the command names no model")
        return
    port = command.get("--port") or ("8000" if started.engine == "vllm" else "30000")
    host = command.get("--host") or "127.0.0.1"
    model = command.get("--served-model-name") or (started.model.value if started.model else None)
    for value in (model, host, port):
        if value is not None and "$" in value:
            found.notes.append(f"line {line}: what it starts; {value} is set elsewhere, write it out")
            return
    key = _key(command, file)
    here = host in ("0.0.0.0", "::", "::0", "[::]", "localhost", "127.0.0.1")
    host = "127.0.0.1" if here else f"[{host}]" if re.fullmatch(r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*", host) else host
    if here:
        found.notes.append(f"line {line}: on which machine it runs; base_url says this one, 127.0.0.1")
    if command.has("--uds"):
        found.notes.append(f"line {line}: --uds; base_url must be an address")
    if _in_docker(command.before) and not _on_the_host(command.before):
        if (outside := _published(command.before, port)) is not None:
            port = outside
        else:
            found.notes.append(f"line {line}: at which port it is reached; the container publishes no port {port}")
    scheme = "https" if command.has("--ssl-certfile", "--ssl-keyfile") else "http"
    url = f"{scheme}://{host}:{port}"
    try:
        check_url(url)
    except ValueError as problem:
        raise ConfigError(f"its address {without_secrets(str(problem))}", path=file, key=f"line {line}") from None
    found.servers.append(
        Server(
            name=(model or started.engine).rstrip("/").rpartition("/")[2],
            url=url,
            adapter=started.engine,
            engine=started.engine,
            model=model,
            api_key_env=key,
            started=started,
            where=f"command line of {started.engine} ({printable(file.name)}, line {line})",
        )
    )


def _key(command: _Command, file: Path) -> str | None:
    """The variable that holds the server's key; a key itself is refused and not shown."""
    given = command.get("--api-key")
    if given is None:  # vLLM takes it from there, too
        return "VLLM_API_KEY" if any("VLLM_API_KEY=" in word for word in command.before) else None
    if (variable := _VARIABLE.fullmatch(given)) is not None:
        return variable[1] or variable[2]
    what = "a key stands in the command; put it into the environment, and name the variable in api_key_env"
    raise ConfigError(what, path=file, line=command.line)


def _in_docker(before: Sequence[str]) -> bool:
    return "run" in before and any(word.rpartition("/")[2] in _DOCKER for word in before)


def _on_the_host(before: Sequence[str]) -> bool:
    return "host" in _values(before, "--network", "--net")


def _published(before: Sequence[str], port: str) -> str | None:
    """The port of the machine that a port of the container is reached by; ``None``: it is not published."""
    for mapping in _values(before, "-p", "--publish"):
        outside, _, inside = mapping.partition("/")[0].rpartition(":")
        if inside == port and outside:
            return outside.rpartition(":")[2]
    return None


def _values(words: Sequence[str], *names: str) -> Iterator[str]:
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                yield value
            elif i + 1 < len(words) and not words[i + 1].startswith("--"):
                yield words[i + 1]
