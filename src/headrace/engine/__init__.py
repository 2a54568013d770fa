"""The engine: one loop over a scheduler and a worker. Speaks token ids only; never imports the worker."""
