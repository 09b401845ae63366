"""Contract suites and in-memory twins of engines, isolations, policies, samplers and frameworks."""
