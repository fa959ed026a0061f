"""Lets pytest accept the markers of transformers' common tests."""

import pytest

from .suite import SuiteUnavailableError, marker_names


def pytest_configure(config: pytest.Config) -> None:
    try:
        names = marker_names()
    except SuiteUnavailableError:
        return  # the test module says so, where it can be seen
    for name in sorted(names):
        config.addinivalue_line("markers", f"{name}: set by transformers' common tests")
