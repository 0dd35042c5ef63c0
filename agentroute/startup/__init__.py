"""What an engine says of itself when it starts: its start-up log, or the command line that it was started with."""
