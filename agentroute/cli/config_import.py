"""``agentroute config import``: a configuration out of what other tools read, or out of the commands of the servers.

What is carried over is what the file says: servers, their models, the variables of their keys, groups as routes. What
is not is said, and nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from agentroute.cli.config_launched import launched
from agentroute.cli.config_writing import Imported, Server, write
from agentroute.cli.options import Json
from agentroute.cli.output import print_json, say
from agentroute.errors import ConfigError, UsageError, counted, shown
from agentroute.files import read_text
from agentroute.fleet import check_url
from agentroute.startup.names import printable, without_secrets

MAX_BYTES = 1024 * 1024
MOST_SERVERS = 1_000

_LITELLM: dict[str, tuple[str, str]] = {
    "hosted_vllm": ("vllm", "vllm"),
    "vllm": ("vllm", "vllm"),
    "openai": ("openai", "other"),
    "custom_openai": ("openai", "other"),
    "llamafile": ("openai", "other"),
    "lm_studio": ("openai", "other"),
    "litellm_proxy": ("openai", "other"),
}
"""LiteLLM's providers that are servers of one's own with the OpenAI API: the adapter, and the engine where told."""
_AIOS: dict[str, tuple[str, str]] = {
    "vllm": ("vllm", "vllm"),
    "sglang": ("sglang", "sglang"),
    "ollama": ("openai", "other"),
}
"""AIOS's backends that run at an address of one's own; Ollama answers to the OpenAI API under /v1, too."""
_PARAMS = {"model", "api_base", "base_url", "api_key", "custom_llm_provider"}
_NOTHING = "holds neither a `model_list` (LiteLLM), nor `llms` (AIOS), nor a `vllm serve` or SGLang command"
_TABLES = re.compile(r"^[ \t{]*[\"']?(?:model_list|llms)[\"']?\s*:", re.MULTILINE)
"""What begins the tables that are read; a file with one is no script, whatever commands its texts speak of."""
_ENVIRONMENT = re.compile(r"os\.environ/([A-Za-z_]\w*)")


def import_(
    file: Annotated[Path, typer.Argument(help="A LiteLLM or AIOS configuration (YAML or JSON), or launch commands.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; default: stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Make an agentroute.toml of a LiteLLM `model_list`, an AIOS `llms` section, or `vllm serve` and SGLang commands.

    What cannot be carried over is told on stderr. Profiles hold what the file says, and are written beside --output;
    `agentroute profiles from-server` and `agentroute measure` tell the rest.
    """
    found = imported(file)
    text = write(found, output, force=force)
    for note in found.notes:
        say(f"not carried over: {printable(note)}")
    if group := next((one.group for one in found.servers if one.group), None):
        say(f"a group is a route now: clients ask for the model auto:{printable(group)}, not {printable(group)}")
    if as_json:
        print_json("config import", {"config": text, "not_carried_over": found.notes})
    elif output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {printable(output)} and {counted(len(found.servers), 'profile')} beside it")


def imported(file: Path) -> Imported:
    """What a file says; raises ``ConfigError``."""
    text = read_text(file, ConfigError, max_bytes=MAX_BYTES)
    found = Imported() if _TABLES.search(text) else launched(text, file)
    if not found.servers and not found.notes:
        data = _table(text, file)
        if isinstance(data.get("model_list"), list):
            _litellm(found, data, file)
        elif "llms" in data:
            _aios(found, data, file)
        else:
            raise ConfigError(_NOTHING, path=file)
    if len(found.servers) > MOST_SERVERS:
        raise ConfigError(f"names more than {MOST_SERVERS:,} servers; split it", path=file)
    if not found.servers:
        why = "".join(f"; {note}" for note in found.notes[:3])
        raise ConfigError(f"names no server of your own that can be carried over{why}", path=file)
    return found


def _table(text: str, file: Path) -> Mapping[str, Any]:
    if file.suffix.lower() == ".json" or text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError("is not valid JSON", path=file) from None
    else:
        data = _yaml(text, file)
    if not isinstance(data, dict):
        a_table = file.suffix.lower() in (".json", ".yaml", ".yml")
        raise ConfigError("must hold a table at its top" if a_table else _NOTHING, path=file)
    return data


def _yaml(text: str, file: Path) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise UsageError("reading YAML needs the extra 'yaml': pip install 'agentroute[yaml]'") from None
    loader = yaml.SafeLoader(text)
    try:
        while not loader.check_event(yaml.StreamEndEvent):
            if isinstance(event := loader.get_event(), yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                # A file of a kilobyte can stand for gigabytes by them.
                raise ConfigError(
                    "uses anchors or aliases (& or *), which are not read; write out what they stand for",
                    path=file,
                    line=event.start_mark.line + 1,
                )
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        raise ConfigError("is not valid YAML", path=file, line=line) from None


# ---- LiteLLM


def _litellm(found: Imported, data: Mapping[str, Any], file: Path) -> None:
    for i, entry in enumerate(data["model_list"]):
        where = f"model_list[{i}]"
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        if not isinstance(params, dict) or not isinstance(params.get("model"), str):
            found.notes.append(f"{where}: has no litellm_params with a model")
            continue
        provider, _, model = params["model"].partition("/")
        if (given := params.get("custom_llm_provider")) is not None and provider != given:
            provider, model = str(given), params["model"]  # a slash is one of the model's own then
        if "*" in params["model"]:
            found.notes.append(f"{where}: {params['model']!r} stands for many models; name each")
            continue
        url = params.get("api_base") or params.get("base_url")
        if provider not in _LITELLM or not url:
            why = f"{params['model']!r} is no server of your own with the OpenAI API" if url else "gives no api_base"
            found.notes.append(f"{where}: {why}")
            continue
        adapter, engine = _LITELLM[provider]
        group = entry.get("model_name")
        server = Server(
            name=str(group or model),
            url=_url(url, where, file),
            adapter=adapter,
            engine=engine,
            model=model or params["model"],
            api_key_env=_key(params.get("api_key"), where, file),
            group=str(group) if group else None,
        )
        found.servers.append(server)
        found.notes += [f"{where}.litellm_params.{key}" for key in sorted(map(str, params)) if key not in _PARAMS]
        found.notes += [
            f"{where}.{key}" for key in sorted(map(str, entry)) if key not in ("model_name", "litellm_params")
        ]
    for name in sorted(map(str, data)):
        table = data[name]
        if name in ("router_settings", "litellm_settings") and isinstance(table, dict):
            found.notes += [f"{name}.{key}" for key in sorted(map(str, table)) if key != "fallbacks"]
            pairs = table.get("fallbacks")
            for pair in pairs if isinstance(pairs, list) else ():
                if isinstance(pair, dict):
                    found.fallbacks |= {str(a): [str(b) for b in bs] for a, bs in pair.items() if isinstance(bs, list)}
        elif name != "model_list":
            found.notes.append(name)


# ---- AIOS


def _aios(found: Imported, data: Mapping[str, Any], file: Path) -> None:
    section = data["llms"]
    models = section.get("models") if isinstance(section, dict) else section
    if not isinstance(models, list):
        raise ConfigError("must be a list of models, or hold one under `models`", path=file, key="llms")
    for i, entry in enumerate(models):
        where = f"llms.models[{i}]" if isinstance(section, dict) else f"llms[{i}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            found.notes.append(f"{where}: has no name")
            continue
        url, backend = entry.get("hostname") or entry.get("base_url"), str(entry.get("backend", ""))
        if not url or (backend and backend not in _AIOS):
            why = f"the backend {backend!r} is no server of your own" if backend not in _AIOS else "gives no hostname"
            found.notes.append(f"{where}: {entry['name']!r}: {why}")
            continue
        adapter, engine = _AIOS.get(backend, ("openai", "other"))
        found.servers.append(
            Server(
                name=entry["name"],
                url=_url(url, where, file),
                adapter=adapter,
                engine=engine,
                model=entry["name"],
                api_key_env=_key(entry.get("api_key"), where, file),
            )
        )
        known = {"name", "backend", "hostname", "base_url", "api_key"}
        found.notes += [f"{where}.{key}" for key in sorted(map(str, entry)) if key not in known]
    if isinstance(section, dict):
        found.notes += [f"llms.{key}" for key in sorted(map(str, section)) if key != "models"]
    found.notes += [name for name in sorted(map(str, data)) if name not in ("llms", "api_keys")]
    if data.get("api_keys"):
        found.notes.append("api_keys: keys never stand in a configuration; put them into the environment")


# ---- parts


def _url(url: object, where: str, file: Path) -> str:
    if not isinstance(url, str):
        raise ConfigError(f"must be an address, got {shown(url)}", path=file, key=where)
    if (variable := _ENVIRONMENT.fullmatch(url)) is not None:
        return f"${{{variable[1]}}}"
    try:
        check_url(url)
    except ValueError as problem:
        raise ConfigError(f"its address {without_secrets(str(problem))}", path=file, key=where) from None
    return url


def _key(key: object, where: str, file: Path) -> str | None:
    """The variable that holds a key; a key itself is refused and not shown."""
    if key is None or (isinstance(key, str) and key.lower() in ("", "none", "empty", "dummy")):
        return None
    if isinstance(key, str) and (variable := _ENVIRONMENT.fullmatch(key)) is not None:
        return variable[1]
    what = "a key stands in the file; put it into the environment, and write os.environ/NAME here"
    raise ConfigError(what, path=file, key=f"{where}.api_key")
