"""What is true right now."""
