"""``python -m agentroute.cli``."""

from agentroute.cli import main

main()
