from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from load_helpers import MockProcess


@pytest.fixture
def mock_server() -> Iterator[Callable[..., MockProcess]]:
    started: list[MockProcess] = []

    def start(*options: str) -> MockProcess:
        started.append(MockProcess(*options))
        return started[-1]

    yield start
    for process in started:
        process.close()
