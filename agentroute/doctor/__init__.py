"""What is wrong, or may be, with deployments: against their servers, as they are set up, as they run. No I/O."""
