"""Progress and failures, read from what a script prints."""
