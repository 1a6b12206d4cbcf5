import struct

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto.uniform import UniformBodies, is_uniform

bodies_lists = st.integers(1, 9).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)


def together(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def plain_sizes(data: bytes, count: int) -> list[int] | None:
    """The sizes of so many messages one after the other; None where they are not all there, or something is left."""
    sizes, start = [], 0
    for _ in range(count):
        if start + 4 > len(data):
            return None
        sizes.append(int.from_bytes(data[start : start + 4], "big"))
        start += 4 + sizes[-1]
    return sizes if start == len(data) else None


@given(bodies_lists, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2), st.data())
def test_one_size_is_seen_where_the_plain_loop_sees_it(
    bodies: list[bytes], damage: list[tuple[int, int]], data: st.DataObject
) -> None:
    content = bytearray(together(bodies))
    for place, byte in damage:
        content[place % len(content)] = byte
    count = data.draw(st.sampled_from([len(bodies), len(bodies) + 1, max(1, len(bodies) - 1)]))
    sizes = plain_sizes(bytes(content), count)
    expected = sizes is not None and sizes[0] > 0 and len(set(sizes)) == 1
    assert is_uniform(bytes(content), 0, len(content), count) == expected
    assert is_uniform(b"before" + content + b"after", 6, 6 + len(content), count) == expected


@given(bodies_lists, st.integers(1, 5))
def test_they_are_counted_walked_and_cut_like_a_list(bodies: list[bytes], step: int) -> None:
    uniform = UniformBodies(together(bodies), len(bodies))
    assert (len(uniform), list(uniform)) == (len(bodies), bodies)
    for start in range(0, len(bodies), step):
        part = uniform.part(start, start + step)
        assert (len(part), list(part)) == (len(bodies[start : start + step]), bodies[start : start + step])
