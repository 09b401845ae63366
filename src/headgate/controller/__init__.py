"""The core: events in, actions out. No clock, no files, no sockets; the hub and the simulator drive
the same object.
"""
