"""agentroute: which model on which backend should take an agent's task, will it hold, how fast, and where will it clog.

::

    from agentroute import Router, Task

    decision = Router.shipped().decide(Task(context_tokens=8_000, max_output_tokens=500, concurrency=16))
    print(decision.explain())

Names are imported when they are first used, so that ``import agentroute`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentroute.client import AsyncClient as AsyncClient
    from agentroute.client import AsyncEvents as AsyncEvents
    from agentroute.client import AsyncForwarded as AsyncForwarded
    from agentroute.client import Client as Client
    from agentroute.client import Events as Events
    from agentroute.client import Forwarded as Forwarded
    from agentroute.client import Reply as Reply
    from agentroute.client import Retry as Retry
    from agentroute.client import Seen as Seen
    from agentroute.client import Session as Session
    from agentroute.client import Timeout as Timeout
    from agentroute.decision import Candidate as Candidate
    from agentroute.decision import Decision as Decision
    from agentroute.decision import Headroom as Headroom
    from agentroute.doctor.finding import Finding as Finding
    from agentroute.errors import AgentrouteError as AgentrouteError
    from agentroute.errors import Attempt as Attempt
    from agentroute.errors import BackendError as BackendError
    from agentroute.errors import ConfigError as ConfigError
    from agentroute.errors import FailureKind as FailureKind
    from agentroute.errors import FileError as FileError
    from agentroute.errors import NoFeasibleDeployment as NoFeasibleDeployment
    from agentroute.errors import PoolFull as PoolFull
    from agentroute.errors import ProfileError as ProfileError
    from agentroute.errors import TaskError as TaskError
    from agentroute.errors import UnknownNameError as UnknownNameError
    from agentroute.errors import UsageError as UsageError
    from agentroute.estimate import Estimate as Estimate
    from agentroute.fleet import Deployment as Deployment
    from agentroute.fleet import Fleet as Fleet
    from agentroute.group import Group as Group
    from agentroute.hints import Hint as Hint
    from agentroute.hints import hint as hint
    from agentroute.lease import Lease as Lease
    from agentroute.outcome import Outcome as Outcome
    from agentroute.profile import Profile as Profile
    from agentroute.route import Route as Route
    from agentroute.router import Router as Router
    from agentroute.shape.model import Model as Model
    from agentroute.spread import Placement as Placement
    from agentroute.spread import Spread as Spread
    from agentroute.state.load import Load as Load
    from agentroute.task import Slo as Slo
    from agentroute.task import Task as Task
    from agentroute.tokens.count import Previous as Previous
    from agentroute.tokens.local import LocalTokenizer as LocalTokenizer
    from agentroute.watch import AsyncWatcher as AsyncWatcher
    from agentroute.watch import Watcher as Watcher
    from agentroute.wire import Event as Event
    from agentroute.wire import Finished as Finished
    from agentroute.wire import ReasoningDelta as ReasoningDelta
    from agentroute.wire import Restarted as Restarted
    from agentroute.wire import TextDelta as TextDelta
    from agentroute.wire import ToolCall as ToolCall
    from agentroute.wire import ToolCallDelta as ToolCallDelta
    from agentroute.wire import Usage as Usage

__version__ = "0.1.0"

_HOME = {
    "AgentrouteError": "errors",
    "AsyncClient": "client",
    "AsyncEvents": "client",
    "AsyncForwarded": "client",
    "AsyncWatcher": "watch",
    "Attempt": "errors",
    "BackendError": "errors",
    "Candidate": "decision",
    "Client": "client",
    "ConfigError": "errors",
    "Decision": "decision",
    "Deployment": "fleet",
    "Estimate": "estimate",
    "Event": "wire",
    "Events": "client",
    "FailureKind": "errors",
    "FileError": "errors",
    "Finding": "doctor.finding",
    "Finished": "wire",
    "Fleet": "fleet",
    "Forwarded": "client",
    "Group": "group",
    "Headroom": "decision",
    "Hint": "hints",
    "Lease": "lease",
    "Load": "state.load",
    "LocalTokenizer": "tokens.local",
    "Model": "shape.model",
    "NoFeasibleDeployment": "errors",
    "Outcome": "outcome",
    "Placement": "spread",
    "PoolFull": "errors",
    "Previous": "tokens.count",
    "Profile": "profile",
    "ProfileError": "errors",
    "ReasoningDelta": "wire",
    "Reply": "client",
    "Restarted": "wire",
    "Retry": "client",
    "Route": "route",
    "Router": "router",
    "Seen": "client",
    "Session": "client",
    "Slo": "task",
    "Spread": "spread",
    "Task": "task",
    "TaskError": "errors",
    "TextDelta": "wire",
    "Timeout": "client",
    "ToolCall": "wire",
    "ToolCallDelta": "wire",
    "UnknownNameError": "errors",
    "Usage": "wire",
    "UsageError": "errors",
    "Watcher": "watch",
    "hint": "hints",
}

__all__ = [
    "AgentrouteError",
    "AsyncClient",
    "AsyncEvents",
    "AsyncForwarded",
    "AsyncWatcher",
    "Attempt",
    "BackendError",
    "Candidate",
    "Client",
    "ConfigError",
    "Decision",
    "Deployment",
    "Estimate",
    "Event",
    "Events",
    "FailureKind",
    "FileError",
    "Finding",
    "Finished",
    "Fleet",
    "Forwarded",
    "Group",
    "Headroom",
    "Hint",
    "Lease",
    "Load",
    "LocalTokenizer",
    "Model",
    "NoFeasibleDeployment",
    "Outcome",
    "Placement",
    "PoolFull",
    "Previous",
    "Profile",
    "ProfileError",
    "ReasoningDelta",
    "Reply",
    "Restarted",
    "Retry",
    "Route",
    "Router",
    "Seen",
    "Session",
    "Slo",
    "Spread",
    "Task",
    "TaskError",
    "TextDelta",
    "Timeout",
    "ToolCall",
    "ToolCallDelta",
    "UnknownNameError",
    "Usage",
    "UsageError",
    "Watcher",
    "__version__",
    "hint",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'agentroute' has no attribute {name!r}")
    value = getattr(import_module(f"agentroute.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
