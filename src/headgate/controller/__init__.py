"""The core: events in, actions out. No clock, no files, no sockets; the hub and the simulator drive
the same object.
"""

from headgate.controller.core import Controller, live_controller
from headgate.controller.queueing import Queue

__all__ = ["Controller", "Queue", "live_controller"]
