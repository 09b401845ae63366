"""Asynchronous plans, whose workers do not wait for each other: the optimizer is on the servers,
and server 0 bounds staleness.
"""
