"""The parts of a hub (docs/architecture.md): each hears every event and sees to one thing."""
