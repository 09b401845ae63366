"""Predict what is left of a job from its losses, epochs and steps: pure functions."""
