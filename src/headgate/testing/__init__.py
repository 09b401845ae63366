"""Contract suites and in-memory twins: what any engine, isolation, policy, sampler or framework
must pass.
"""
