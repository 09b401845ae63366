"""Conclusions from recorded data: pure functions over arrays and rows, no files."""
