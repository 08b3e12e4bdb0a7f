"""transformers' own `generate`, watched: its rounds as the events of this package."""
