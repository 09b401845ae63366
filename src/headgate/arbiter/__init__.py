"""The arbiter of a machine: what each user may have. No clock, no files; the daemon and the
simulator drive the same object.
"""
