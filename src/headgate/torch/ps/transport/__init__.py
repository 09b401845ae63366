"""What workers and servers talk over: sockets, messages, requests with their answers, and
snapshots.
"""
