"""What clients say and hear: request bodies to prompts and sampling, news to reply bodies. No sockets, no engine."""
