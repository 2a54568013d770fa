"""BERT encoders: text in, one vector out. They see a text whole, so no step, cache or scheduler takes part."""
