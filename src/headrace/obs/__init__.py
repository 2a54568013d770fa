"""What can be seen of a running engine without touching it: flight recorder, recordings, timelines."""
