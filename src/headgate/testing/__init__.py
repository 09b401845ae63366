"""Contract suites and in-memory twins that any engine, isolation, policy or sampler must pass."""
