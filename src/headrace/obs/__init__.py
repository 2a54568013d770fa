"""What can be seen of a running engine, without touching it: the flight recorder, its recordings, timelines."""
