"""What people read of a run: one self-contained page, and the terminal's tables."""
