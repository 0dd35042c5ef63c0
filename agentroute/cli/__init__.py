"""The command line. Data goes to stdout, chatter to stderr; exit 0 ok, 1 failure, 2 usage, 3 nothing feasible."""

import os
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """The entry point of the ``agentroute`` command; Ctrl-C ends it without a traceback, whenever it comes."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        from agentroute.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
