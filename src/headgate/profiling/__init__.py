"""Measures what jobs and nodes cost: profiles and calibrations."""
