"""Load on a server over HTTP: what is sent and when, a small client, and the figures. Any OpenAI-compatible server."""
