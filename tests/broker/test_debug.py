"""/debug/pprof."""

import gc
import weakref
from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from pyspark_nsq.broker import debug
from pyspark_nsq.broker.http_messages import HttpError, Request, Response, answer
from pyspark_nsq.broker.http_router import Match, Router

ROUTER = Router(debug.routes("/debug/pprof/"))


def ask(name: str, query: str = "") -> Response:
    found = ROUTER.find("GET", f"/debug/pprof/{name}")
    assert isinstance(found, Match)
    return answer(found.route.handler(Request("GET", "", "", query, {})))


def waiting_in_a_named_function(release: Event) -> None:
    release.wait()


def busy_until(done: Callable[[], bool]) -> None:
    while not done():
        sum(range(2000))
        gevent.sleep(0)


def test_goroutine_shows_every_greenlet() -> None:
    release = Event()
    greenlet = gevent.spawn(waiting_in_a_named_function, release)
    gevent.sleep(0)
    assert b"waiting_in_a_named_function" in ask("goroutine").body
    release.set()
    greenlet.join()


def test_profile_finds_what_is_busy() -> None:
    profile = gevent.spawn(ask, "profile", "seconds=0.3")
    busy_until(profile.ready)
    lines = profile.get().body.decode().splitlines()
    assert lines[0].startswith("# ")
    assert any(":busy_until:" in line and line.split()[-1].isdigit() for line in lines[1:])


def test_one_profile_at_a_time() -> None:
    first = gevent.spawn(ask, "profile", "seconds=0.3")
    gevent.sleep(0)
    with pytest.raises(HttpError, match="503 PROFILE_RUNNING"):
        ask("profile", "seconds=0.3")
    assert first.get().status == 200
    assert ask("profile", "seconds=0.01").status == 200


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan", "inf", "301"])
def test_profiles_are_bounded(seconds: str) -> None:
    with pytest.raises(HttpError, match="400 INVALID_SECONDS"):
        ask("profile", f"seconds={seconds}")


def test_the_rest() -> None:
    assert b"profile" in ask("").body
    assert b"resident bytes: " in ask("heap").body
    assert b"builtins.dict" in ask("heap").body
    assert b"MainThread" in ask("threadcreate").body
    assert b"\0" in ask("cmdline").body
    assert ask("symbol").body == b"num_symbols: 0\n"
    assert ask("block").status == 404


def test_free_memory_collects_garbage() -> None:
    class Loop:
        itself: object

    loop = Loop()
    loop.itself = loop
    alive = weakref.ref(loop)
    gc.disable()
    try:
        del loop
        assert alive() is not None
        debug.free_memory()
        assert alive() is None
    finally:
        gc.enable()
