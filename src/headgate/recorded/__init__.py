"""Records of runs: the store and folder of each, and what a resume starts from."""
