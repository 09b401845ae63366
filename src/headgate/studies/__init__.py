"""Studies: grids of runs, repeated in shuffled blocks, and what follows from them."""
