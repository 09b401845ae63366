"""Reports of a run for people: a self-contained page, and terminal tables."""
