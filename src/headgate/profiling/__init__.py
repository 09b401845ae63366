"""From a job to its profile."""
