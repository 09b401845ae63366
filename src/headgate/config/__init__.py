"""Users' YAML files, checked as a whole: every problem has its line, value and cure."""
