"""Watched searches for the tests of this folder."""

from typing import Any

import pytest

from vanilla_transformer import beam_search_vanilla_transformer as engine
from vanilla_transformer import greedy_search_vanilla_transformer as greedy_engine

from .common import WatchedDecoder, WatchedSearch


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[WatchedSearch]:
    """The beam searches of our own in a test, in order."""
    made: list[WatchedSearch] = []

    def search(*args: Any, **kwargs: Any) -> WatchedSearch:
        made.append(WatchedSearch(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(engine, "BeamSearch", search)
    return made


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> list[WatchedDecoder]:
    """The decoders of the greedy searches of our own in a test, in order."""
    made: list[WatchedDecoder] = []

    def decoder(*args: Any) -> WatchedDecoder:
        made.append(WatchedDecoder(*args))
        return made[-1]

    monkeypatch.setattr(greedy_engine, "SharedSourceDecoder", decoder)
    return made
