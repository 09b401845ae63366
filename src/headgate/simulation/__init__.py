"""Simulation: the same controller and policies as live, with a simulated clock and a model of
jobs.
"""

from headgate.simulation.outcomes import Assumptions, Outcome
from headgate.simulation.results import Figures, figures
from headgate.simulation.simulator import simulate
from headgate.simulation.specs import fitting
from headgate.simulation.trace_files import read
from headgate.simulation.traces import Trace, TraceJob

__all__ = [
    "Assumptions",
    "Figures",
    "Outcome",
    "Trace",
    "TraceJob",
    "figures",
    "fitting",
    "read",
    "simulate",
]
