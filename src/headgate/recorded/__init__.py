"""What is kept of runs: the store of each, its folder, and what a run resumes from."""
