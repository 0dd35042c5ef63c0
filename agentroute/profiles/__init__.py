"""The data that ships with agentroute: models, accelerators, prices and deployment profiles, as TOML files."""
