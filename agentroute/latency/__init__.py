"""How fast a deployment is."""
