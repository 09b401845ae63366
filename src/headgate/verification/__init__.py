"""Verifies that a script trains the same under a plan, or after a resume, as it does alone, by
comparing records of its steps.

Tasks write the records (`headgate.task.recording`). `client.verifying` runs the script for them.
"""
