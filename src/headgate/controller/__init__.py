"""The core: events in, actions out. No clock, no files, no sockets; the hub and the simulator drive the same object."""

from headgate.controller.core import Controller
from headgate.controller.queueing import Queue
from headgate.controller.records import CONNECTED_GRACE_SECONDS, GRACE_SECONDS

__all__ = ["CONNECTED_GRACE_SECONDS", "GRACE_SECONDS", "Controller", "Queue"]
