"""The nouns: frozen dataclasses and enumerations that all other rooms use."""
