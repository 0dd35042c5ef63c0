"""Observers of calls, for ``AsyncClient(router, observers=[...])``: records, accounts, OpenTelemetry.

Without one, a call does nothing for them.
"""

from agentroute.ended import Ended, Observer
from agentroute.telemetry.accounts import Account, Accounts
from agentroute.telemetry.records import Records

__all__ = ["Account", "Accounts", "Ended", "Observer", "Records"]
