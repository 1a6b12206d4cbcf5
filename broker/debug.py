"""/debug/pprof of both daemons: what Go's profiles tell, told of Python.

    routes = (..., *debug.routes("/debug/pprof/"))

``goroutine``: the stacks of all greenlets and threads; ``heap``: memory held and what the objects are; ``profile``:
where CPU time goes in ``?seconds=30``, as folded stacks (one line a stack with its samples: flame graph tools read
it); ``threadcreate``: the threads; ``cmdline`` and ``symbol`` as in Go. There is no profile of blocking: 404.
"""

import gc
import signal
import sys
import threading
import time
from collections import Counter
from types import FrameType

import gevent
from gevent.lock import BoundedSemaphore

from pyspark_nsq.broker.http_messages import HttpError, Request, Response, text_answer
from pyspark_nsq.broker.http_router import Route
from pyspark_nsq.broker.prometheus import resident_bytes

_PROFILE_DEFAULT_S = 30.0
_PROFILE_MAX_S = 300.0
_SAMPLE_INTERVAL_S = 0.005
_STACK_DEPTH_MAX = 100
_HEAP_TYPES_SHOWN = 40
_INDEX = """goroutine     stacks of all greenlets and threads
heap          memory held, and the objects by type
threadcreate  the threads
profile       CPU profile as folded stacks, of ?seconds=30
cmdline       the command line
"""

_profiling = BoundedSemaphore(1)


def routes(index_path: str) -> tuple[Route, ...]:
    """The routes; the index is at ``index_path``, where Go's two daemons differ by a slash."""
    return (
        Route("GET", index_path, lambda _: text_answer(_INDEX)),
        Route("GET", "/debug/pprof/goroutine", lambda _: text_answer(stacks())),
        Route("GET", "/debug/pprof/heap", lambda _: text_answer(heap())),
        Route("GET", "/debug/pprof/threadcreate", lambda _: text_answer(threads())),
        Route("GET", "/debug/pprof/block", _no_block_profile),
        Route("GET", "/debug/pprof/profile", _profile),
        Route("GET", "/debug/pprof/cmdline", lambda _: text_answer("\0".join(sys.orig_argv))),
        Route("GET", "/debug/pprof/symbol", _symbol),
        Route("POST", "/debug/pprof/symbol", _symbol),
    )


def stacks() -> str:
    """Where every greenlet and every thread is."""
    from gevent.util import format_run_info

    return "\n".join(format_run_info()) + "\n"


def heap() -> str:
    """Memory held and how many objects there are of each type."""
    objects = gc.get_objects()
    types = Counter(f"{type(item).__module__}.{type(item).__qualname__}" for item in objects)
    lines = [
        f"resident bytes: {resident_bytes()}",
        f"allocated blocks: {sys.getallocatedblocks()}",
        f"tracked objects: {len(objects)}",
        *(f"generation {at}: {stats}" for at, stats in enumerate(gc.get_stats())),
        "",
        *(f"{count:10d} {name}" for name, count in types.most_common(_HEAP_TYPES_SHOWN)),
    ]
    return "\n".join(lines) + "\n"


def threads() -> str:
    names = [f"{thread.ident} {thread.name}" for thread in threading.enumerate()]
    return f"threads: {len(names)}\n" + "\n".join(names) + "\n"


def free_memory() -> None:
    """Collect garbage and give free pages back to the system."""
    import ctypes

    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have none
    if malloc_trim is not None:
        malloc_trim(0)


def _no_block_profile(_: Request) -> Response:
    return text_answer("Python has no profile of blocking\n", 404)


def _symbol(_: Request) -> Response:
    return text_answer("num_symbols: 0\n")


def _profile(request: Request) -> Response:
    try:
        seconds = float(request.args.get("seconds", _PROFILE_DEFAULT_S))
    except ValueError:
        raise HttpError(400, "INVALID_SECONDS") from None
    if not 0 < seconds <= _PROFILE_MAX_S:
        raise HttpError(400, "INVALID_SECONDS")
    if not _profiling.acquire(blocking=False):
        raise HttpError(503, "PROFILE_RUNNING")
    try:
        return text_answer(_sampled(seconds))
    finally:
        _profiling.release()


def _sampled(seconds: float) -> str:
    """Folded stacks, one sample for each few milliseconds of CPU time. A signal takes them: a thread that looks on
    would mostly see the places where this one gives up the interpreter's lock."""
    counts: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        counts[_folded(frame)] += 1

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, _SAMPLE_INTERVAL_S, _SAMPLE_INTERVAL_S)
    started = time.process_time()
    try:
        gevent.sleep(seconds)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # not the default: a late signal would end the process
    took = time.process_time() - started
    lines = [f"{stack} {count}" for stack, count in counts.most_common()]
    return "\n".join([f"# {sum(counts.values())} samples of {took:.2f} s CPU time", *lines]) + "\n"


def _folded(frame: FrameType | None) -> str:
    """``outermost;...;innermost``, each as module:function:line."""
    parts: list[str] = []
    while frame is not None and len(parts) < _STACK_DEPTH_MAX:
        code = frame.f_code
        parts.append(f"{frame.f_globals.get('__name__', '?')}:{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(parts))
