"""A real server on the laptop: llama.cpp with a small model, for trying agentroute and for its own tests."""
