"""Sparse tables that no worker holds. Rows live on the servers; workers look up and update the rows
that they use.
"""
