"""Sparse tables that no worker holds: rows live on the servers, and workers look up and update
those they use.
"""
