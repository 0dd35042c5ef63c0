"""Agent-facing model routing."""

__version__ = "0.1.0"
