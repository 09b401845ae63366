"""The hub's state of live runs, jobs and attempts."""
