"""What the hub knows of runs, jobs and attempts while they live."""
