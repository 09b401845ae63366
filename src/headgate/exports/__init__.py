"""What was recorded of a run, in the form that other tools read."""
