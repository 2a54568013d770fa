"""The worker: executes planned steps on a device. Never schedules, never sees text, never imports the engine."""
