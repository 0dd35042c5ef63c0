"""What a deployment is: the model, the accelerator it stands on, and the way it is split."""
