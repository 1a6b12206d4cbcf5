"""The trap of a sink that skips batches it has written already.

The file sink has written batch 0 and logged it; Spark dies before its own commit log says so. The restarted query
runs batch 0 again, and the sink skips it. A source that fills the repeated batch with whatever is there now would then
finish messages that were never written.
"""

import time
from pathlib import Path

from faults.cluster import Cluster
from faults.crash import FIRST_COUNT, LATER_COUNT, shared_driver, stop_before_commit
from faults.driver import LOCAL
from faults.gates import RECEIVED
from faults.queries import FILES
from faults.report import Row
from faults.scenario import Context, Scenario
from faults.subject import Subject, check_gone, finish_all

NAME = "trap"
FAULT = "killed between the sink's log and Spark's"


def run(context: Context) -> Row:
    driver = shared_driver(context, LOCAL)
    with Cluster(context.impl, context.folder, context.seed) as cluster:
        subject = Subject(context.folder / "query", cluster, FILES)
        subject.order.gates.close(RECEIVED, str(FIRST_COUNT))
        began = time.monotonic()
        driver.start(subject.order)
        subject.publish(FIRST_COUNT)
        subject.wait(lambda: subject.order.gates.arrived(RECEIVED), "its messages", driver)
        batch = stop_before_commit(subject, driver)
        log = Path(subject.order.place) / "_spark_metadata" / str(batch)
        written = log.read_text()
        driver.kill()
        assert not subject.has_commit(batch)
        driver.check_left_behind()
        # These wait before the repeated batch is planned: the wrong messages to put into it.
        subject.publish(LATER_COUNT)
        driver = shared_driver(context, LOCAL)
        driver.start(subject.order)
        finish_all(driver, [subject])
        failure = subject.complaint or check_gone(driver, cluster, [subject])
        assert subject.has_commit(batch), "the batch was not repeated"
        assert (Path(subject.order.place) / "_spark_metadata" / str(batch)).read_text() == written, (
            "nothing was skipped"
        )
        counts = (1, len(subject.published), subject.lost(), subject.duplicated())
        lasted = time.monotonic() - began
        return Row(FAULT, "driver JVM", context.impl.name, *counts, True, lasted, 0, NAME, failure)


SCENARIOS = [Scenario(NAME, run, FAULT, "driver JVM")]
