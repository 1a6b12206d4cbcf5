"""Who gets which request, and what failures make of it: no socket, and time is a number."""

import random

import pytest

from pyspark_nsq.connector.errors import ConnectError, DiscoveryError, RefusedError, SecurityError
from pyspark_nsq.connector.options import RetryOptions, SinkOptions, parse_sink_options
from pyspark_nsq.connector.publishing import NodeHealth, PublishError, Publishing, Request
from pyspark_nsq.connector.settings import Address, HttpAddress

A, B, C = (Address(host, 4150) for host in "abc")


def options(**texts: str) -> SinkOptions:
    return parse_sink_options({"topic": "t", "lookupdHttpAddresses": "h:1"} | texts)


def publishing(*nodes: Address, **texts: str) -> Publishing:
    return Publishing(nodes, NodeHealth(options().retry), options(**texts))


def request(count: int = 1, answers: int = 1) -> Request:
    return Request("t", count, answers, (b"x" * count,))


def broken(address: Address) -> ConnectError:
    return ConnectError(address, "the connection broke")


def assigned(books: Publishing, now_s: float = 0) -> list[Address]:
    """Where all goes that can go now."""
    found = []
    while job := books.assign(now_s):
        found.append(job[0])
    return found


def test_all_goes_to_the_first_as_far_as_its_window_allows() -> None:
    books = publishing(A, B, maxOutstanding="2")
    for _ in range(5):
        books.submit(request())
    assert assigned(books) == [A, A, B, B]
    assert books.is_waiting
    books.answered(A, 1)
    assert assigned(books, 1) == [A]
    assert not books.is_waiting


def test_it_is_done_with_the_last_ok() -> None:
    books = publishing(A)
    books.submit(request(5))
    books.submit(request(7, answers=2))
    assert assigned(books) == [A, A]
    for left in (3, 2, 1):
        assert not books.is_done, left
        books.answered(A, 1)
    assert books.is_done
    assert books.stored == {("t", A): 12}
    assert books.resent == 0


def test_what_was_outstanding_on_a_broken_connection_goes_elsewhere_in_its_order() -> None:
    books = publishing(A, B)
    requests = [request(count) for count in (1, 2, 4)]
    for each in requests:
        books.submit(each)
    assert assigned(books) == [A, A, A]
    books.answered(A, 1)
    books.failed(A, broken(A), 1)
    assert [books.assign(1), books.assign(1)] == [(B, requests[1]), (B, requests[2])]
    assert books.resent == 6
    books.answered(B, 2)
    books.answered(B, 2)
    assert books.stored == {("t", A): 1, ("t", B): 6}


def test_what_never_left_is_not_sent_again() -> None:
    books = publishing(A, B)
    books.submit(request(9))
    assert assigned(books) == [A]
    books.failed(A, broken(A), 0, was_connected=False)
    assert assigned(books) == [B]
    assert books.resent == 0


def test_each_of_the_quorum_is_another_nsqd() -> None:
    books = publishing(A, B, C, publishQuorum="2")
    books.submit(request(3))
    assert assigned(books) == [A, B]
    books.answered(A, 1)
    books.failed(B, broken(B), 1)
    assert assigned(books, 1) == [C]
    assert not books.is_done
    books.answered(C, 2)
    assert books.is_done
    assert books.stored == {("t", A): 3, ("t", C): 3}


def test_a_failing_nsqd_is_left_out_ever_longer() -> None:
    health = NodeHealth(RetryOptions(0.1, 0.5))
    for now_s, until_s in [(0, 0.1), (1, 1.2), (2, 2.4), (3, 3.5), (4, 4.5)]:
        health.failed(A, now_s)
        assert health.until_s(A) == pytest.approx(until_s)
    assert health.until_s(B) == 0
    health.worked(A)
    health.failed(A, 9)
    assert health.until_s(A) == pytest.approx(9.1)


def test_an_nsqd_that_is_left_out_is_tried_again_in_time() -> None:
    books = publishing(A, retryDelay="100ms")
    books.submit(request())
    assert assigned(books) == [A]
    books.failed(A, broken(A), 10)
    assert assigned(books, 10) == []
    assert books.next_try_s() == pytest.approx(10.1)
    assert assigned(books, 10.1) == [A]
    assert books.next_try_s() is None


def test_retries_count_rounds_over_all_nsqds() -> None:
    books = publishing(A, B, retries="2", retryDelay="1ms")
    books.submit(request(8))
    for now_s in (100, 200, 300, 400, 500):
        (address,) = assigned(books, now_s)
        books.failed(address, broken(address), now_s)
    (last,) = assigned(books, 600)
    with pytest.raises(PublishError, match=r"8 messages for topic t .*tried 3 times.*nsqd a:4150.*nsqd b:4150"):
        books.failed(last, broken(last), 600)


def test_what_any_nsqd_would_refuse_is_not_tried_again() -> None:
    books = publishing(A, B)
    books.submit(request())
    assert assigned(books) == [A]
    with pytest.raises(PublishError, match=r"1 messages for topic t .*MPUB message too big.*maxMsgSize"):
        books.failed(A, RefusedError(A, "E_BAD_MESSAGE", "MPUB message too big 5 > 4"), 1)


def test_what_one_nsqd_cannot_do_now_another_one_may() -> None:
    books = publishing(A, B)
    books.submit(request())
    assert assigned(books) == [A]
    books.failed(A, RefusedError(A, "E_MPUB_FAILED", "MPUB failed exiting"), 1)
    assert assigned(books, 1) == [B]


def test_it_gives_up_at_once_where_every_nsqd_rejects_us() -> None:
    books = publishing(A, B)
    books.submit(request())
    assert assigned(books) == [A]
    books.failed(A, SecurityError(A, "has a certificate that is not accepted"), 0)
    assert assigned(books) == [B]
    with pytest.raises(PublishError, match=r"certificate.*b:4150: demands AUTH"):
        books.failed(B, SecurityError(B, "demands AUTH"), 0)


def test_fewer_nsqds_than_the_quorum() -> None:
    books = publishing(A, publishQuorum="2", retries="1", retryDelay="100ms")
    books.submit(request())
    assert assigned(books) == [A]
    assert not books.lacks_nodes()
    books.answered(A, 1)
    assert books.lacks_nodes()
    books.lacked_nodes(1, [])
    assert books.next_try_s() == pytest.approx(1.1)
    books.use_nodes([A, B])
    assert assigned(books, 2) == [B]


def test_a_quorum_above_the_number_of_nsqds_is_named() -> None:
    books = publishing(A, publishQuorum="2", retries="0")
    books.submit(request())
    assert assigned(books) == [A]
    books.answered(A, 1)
    with pytest.raises(PublishError, match=r"option publishQuorum is 2, but the nsqds that are known are 1$"):
        books.lacked_nodes(1, [])


def test_no_nsqd_is_found() -> None:
    books = publishing(retries="1")
    books.submit(request())
    assert assigned(books) == []
    assert books.lacks_nodes()
    books.lacked_nodes(1, [])
    with pytest.raises(PublishError, match=r"tried 2 times .*: no nsqd is known$"):
        books.lacked_nodes(2, [])


def test_where_lookupds_are_silent_the_error_says_why() -> None:
    books = publishing(retries="0")
    books.submit(request())
    silent = [DiscoveryError(HttpAddress(Address(host, 4161)), "GET /nodes failed: timed out") for host in "lm"]
    words = r"no nsqd is known; http://l:4161: GET /nodes failed: timed out; http://m:4161: GET /nodes failed"
    with pytest.raises(PublishError, match=words):
        books.lacked_nodes(1, silent)


def test_an_nsqd_that_lookupd_no_longer_names_still_owes_its_answers() -> None:
    books = publishing(A)
    books.submit(request(2))
    assert assigned(books) == [A]
    books.use_nodes([B])
    assert books.owes_answer(A)
    books.answered(A, 1)
    assert books.stored == {("t", A): 2}
    books.use_nodes([B])
    books.failed(A, broken(A), 2)
    books.submit(request())
    assert assigned(books, 2) == [B]


def test_an_answer_is_due_some_time_after_the_one_before() -> None:
    books = publishing(A, requestTimeout="5s")
    assert books.deadlines_s() == {}
    books.submit(request())
    books.submit(request())
    assert books.assign(1)
    assert books.assign(2)
    assert books.deadlines_s() == {A: 6}
    books.answered(A, 4)
    assert books.deadlines_s() == {A: 9}


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fails_all_is_stored_at_the_quorum(seed: int) -> None:
    """Random successes and failures against a model of what each nsqd has."""
    rng = random.Random(seed)
    quorum = rng.choice([1, 1, 2, 3])
    nodes = [A, B, C, Address("d", 1)]
    books = publishing(*nodes, publishQuorum=str(quorum), retries="1000000", maxOutstanding=str(rng.randint(1, 4)))
    requests = [request(number + 1) for number in range(40)]
    waiting, sent, now_s = list(requests), {address: [] for address in nodes}, 0.0
    stored: dict[Address, set[Request]] = {address: set() for address in nodes}
    for _ in range(5000):
        if not waiting and books.is_done:
            break
        now_s += rng.choice([0, 0.05, 20])
        if waiting and rng.random() < 0.5:
            books.submit(waiting.pop(0))
        while job := books.assign(now_s):
            sent[job[0]].append(job[1])
        busy = [address for address in nodes if sent[address]]
        if not busy:
            continue
        address = rng.choice(busy)
        if rng.random() < 0.7:
            stored[address].add(sent[address].pop(0))
            books.answered(address, now_s)
        else:
            sent[address].clear()
            books.failed(address, broken(address), now_s)
    assert books.is_done
    for each in requests:
        assert sum(each in stored[address] for address in nodes) >= quorum
    total = sum(each.message_count for each in requests)
    assert books.stored.total() == total * quorum
