"""Tests that need an optional package: skipped without it, but where the whole suite is asked for they fail."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from headrace import env


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    """For a test, or a module's ``pytestmark``. With test data named nothing is skipped: a part that was not installed
    must not pass for one that works."""
    skips = find_spec(package) is None and env.test_data() is None
    return pytest.mark.skipif(skips, reason=f"needs the {extra} extra")


needs_compiler = needs("xgrammar", "grammar")
