"""Nouns: frozen dataclasses and enumerations that every other room uses."""
