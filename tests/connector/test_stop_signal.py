"""A process that is asked to end hears it, whatever it does at that moment."""

import signal
import threading
import time

from pyspark_nsq.connector.stop_signal import StopSignal


def test_it_ends_a_wait_that_it_does_not_interrupt() -> None:
    """The system may give it to any thread; or to the one that waits, a moment before it does."""
    with StopSignal(signal.SIGUSR1) as stopping:
        main = threading.main_thread()

        def raise_elsewhere() -> None:
            assert threading.current_thread() is not main
            time.sleep(0.05)
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

        thread = threading.Thread(target=raise_elsewhere)
        thread.start()
        assert stopping.wait(60)
        thread.join()


def test_it_is_heard_again() -> None:
    with StopSignal(signal.SIGUSR1, signal.SIGUSR2) as stopping:
        assert not stopping.wait(0)
        assert not stopping.wait(0.001)
        signal.raise_signal(signal.SIGUSR2)
        assert stopping.wait()
        assert stopping.wait(0)


def test_handlers_are_as_before_afterwards() -> None:
    former = signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(-1)
    with StopSignal(signal.SIGUSR1):
        assert signal.getsignal(signal.SIGUSR1) != former[0]
    assert (signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(former[1])) == former
