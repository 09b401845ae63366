"""Whether a script trains the same under a plan, or after a resume, as it does alone: records of
its steps compared.

A task writes the records (`headgate.task.recording`); `client.verifying` runs the script for them.
"""
