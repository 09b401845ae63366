"""What tests and benchmarks run real jobs, links and daemons with; nobody who only uses Headgate
needs it.
"""
