"""Communication between workers and servers: sockets, messages, calls with answers, and
snapshots.
"""
