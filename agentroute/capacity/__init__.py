"""What a deployment can hold."""
