"""The Python interface: submits jobs to the hub, follows them, and reads their results.

The command line is built on the same functions.
"""
