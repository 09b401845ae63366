"""What recorded data says: pure functions over arrays and rows, no files."""
