"""What a command is: its program, launcher, contract and files, found by reading it."""
