"""``agentroute serve``: an OpenAI-compatible gateway in front of a router (extra ``gateway``)."""
