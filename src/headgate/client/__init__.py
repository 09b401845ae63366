"""From Python: hands jobs in to the hub, follows them, and asks what became of them.

The command line stands on it too.
"""
