"""Measuring deployments."""
