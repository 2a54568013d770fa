"""Models: a registry, the forward context, weights and sources, and one folder per family."""
