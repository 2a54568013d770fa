"""Tenants: who may use the server, how much, and whose turn it is. Knows no HTTP and no engine."""
