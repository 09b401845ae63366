"""Users' files in YAML: checked as a whole, every problem with its line, the value and the cure."""
