"""Training a small member of the V4.1 family, with torch's autograd, from public-domain text.

Its own forward form (dense masks, whole sequences) computes what the serving path computes; a test holds the two
together. Nothing here is loaded when a model is served.
"""
