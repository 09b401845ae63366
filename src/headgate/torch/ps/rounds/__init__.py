"""Synchronous rounds: workers push gradients chunk by chunk, servers add them up, and all take the
sums.
"""
