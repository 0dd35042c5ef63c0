"""Ways into the frameworks that agents are written in. Each module needs the package that it is for, and no other."""
