"""Studies: grids of runs, repeated in shuffled blocks, and their findings."""
