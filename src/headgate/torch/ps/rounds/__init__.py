"""Synchronous rounds: workers push gradients chunk by chunk, servers sum them, and all workers take
the sums.
"""
