import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker import checksum
from pyspark_nsq.broker.checksum import crc32


@given(st.binary(max_size=300), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_it_is_zlibs_whoever_computes_it(data: bytes, times: int, start: int) -> None:
    large = data * times
    assert crc32(large, start) == crc32(memoryview(large), start) == zlib.crc32(large, start)


def test_without_isa_l_it_is_zlib_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    assert checksum._fastest() is zlib.crc32


def test_with_isa_l_it_is_not_zlibs() -> None:
    pytest.importorskip("isal", reason="the extra `fast` is not installed")
    assert crc32 is not zlib.crc32
