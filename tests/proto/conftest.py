"""What tests of several columns share."""

from collections.abc import Iterator

import pytest

from pyspark_nsq.proto.columns import BUFFER_SIZE_MAX

WAYS = {
    "searched": {"_SEARCHED_SIZE_MIN": 1, "_SHARE_MAX": 1},
    "searched in small blocks": {"_SEARCHED_SIZE_MIN": 1, "_SHARE_MAX": 1, "_BLOCK_SIZE": 100},
    "one by one": {"_SEARCHED_SIZE_MIN": BUFFER_SIZE_MAX},
}


@pytest.fixture(params=WAYS, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """How the borders of records are found, which the size of a buffer decides otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WAYS[request.param].items():
            patch.setattr(f"pyspark_nsq.proto.chains.{name}", value)
        yield
