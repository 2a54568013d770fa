"""The door for clients over HTTP: routes, streams, admission. Needs the ``serve`` extra."""
