"""Expert placement: which expert has how many copies, and which rank holds them. Pure functions of token counts."""
