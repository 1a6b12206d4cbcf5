"""What the journal is told of a queue against the queue itself."""

import hypothesis.strategies as st
from hypothesis import given

from pyspark_nsq.broker.on_record import OnRecord


@given(st.data())
def test_what_is_told_adds_up_to_the_queue(data: st.DataObject) -> None:
    on_record = OnRecord()
    queue: list[int] = []
    told: list[int] = []
    joined = left = 0
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["join", "join", "leave", "tell"]))
        if action == "join":
            count = data.draw(st.integers(1, 6))
            queue += range(joined, joined + count)
            joined += count
        elif action == "leave":
            count = data.draw(st.integers(0, len(queue)))
            del queue[:count]
            left += count
        else:
            everything = data.draw(st.booleans())
            size = data.draw(st.integers(1, 4))  # of the entries that the queue has them in
            entries = [[seq, len(queue[at : at + size]), 7] for at, seq in enumerate(queue) if not at % size]
            gone, new = on_record.changes(len(queue), left, reversed(entries), everything=everything)
            told = [] if everything else told[gone:]
            told += [seq + at for seq, count, _extra in new for at in range(count)]
            assert told == queue
            assert all(extra == 7 for *_, extra in new)
