"""Plant one fault after the other in a copy of the broker, and expect the conformance suite to fail each time.

    .venv/bin/python tools/mutate_broker.py              every fault, each against the tests that should see it
    .venv/bin/python tools/mutate_broker.py pause touch  the faults whose names contain one of the words
    .venv/bin/python tools/mutate_broker.py --all        every fault against the whole suite

Ends with 1 if a fault stays unseen.
"""

import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from mutants import ROOT, Fault, Suite, main

SCRIPT = """#!{python}
import sys
sys.path.insert(0, {folder!r})
from pyspark_nsq.broker.{module} import main
sys.exit(main())
"""

FAULTS = [
    Fault(
        "attempts not counted",
        "broker/segment.py",
        'int.from_bytes(buffer[at : at + 2], "big") + extra, MAX_ATTEMPTS)',
        'int.from_bytes(buffer[at : at + 2], "big"), MAX_ATTEMPTS)',
        ("semantics", "attempts"),
    ),
    Fault(
        "AUTH not required",
        "broker/session.py",
        "ClientAuth(enabled=bool(host.options.auth_http_addresses)",
        "ClientAuth(enabled=False",
        ("auth", "auth_comes_first"),
    ),
    Fault(
        "body of MPUB checked before rights",
        "broker/session.py",
        'if command.word == b"MPUB" and self.auth.enabled and command.code in',
        "if not command.word and command.code in",
        ("auth", "mpub_is_denied_before"),
    ),
    Fault(
        "wrong code for a bad topic",
        "proto/parser.py",
        '_MalformedError("E_BAD_TOPIC"',
        '_MalformedError("E_INVALID"',
        ("protocol", "bad_names"),
    ),
    Fault(
        "bodies cut at 64 KiB",
        "proto/parser.py",
        "bodies = [buffer[body + _SIZE.size : end]]",
        "bodies = [buffer[body + _SIZE.size : end][:65536]]",
        ("publish", "arrives_whole"),
    ),
    Fault(
        "deflate refused",
        "broker/identify.py",
        "upgradable and options.deflate and asked.deflate",
        "False",
        ("tls_compression", "each_upgrade_has_its_ok"),
    ),
    Fault(
        "snappy refused",
        "broker/identify.py",
        "upgradable and options.snappy and asked.snappy",
        "False",
        ("tls_compression", "each_upgrade_has_its_ok"),
    ),
    Fault(
        "delay of DPUB ignored",
        "proto/parser.py",
        "1, defer_ns // _NS_PER_MS), end",
        "1, 0), end",
        ("semantics", "deferred"),
    ),
    Fault(
        "defer over HTTP ignored",
        "broker/nsqd_http.py",
        'self._defer_ns(request.args["defer"]) if "defer" in request.args else 0',
        '0 * self._defer_ns(request.args["defer"]) if "defer" in request.args else 0',
        ("semantics", "deferred"),
    ),
    Fault(
        "delay of REQ ignored",
        "broker/session.py",
        "delay_ns = command.delay_ms * _NS_PER_MS",
        "delay_ns = 0",
        ("semantics", "requeue_with_delay"),
    ),
    Fault(
        "ephemeral channel kept",
        "broker/channel.py",
        "if self.ephemeral and not self.consumers and not self.deleted:",
        "if False:",
        ("control", "ephemeral_channel"),
    ),
    Fault(
        "FIN of an unknown id silent",
        "broker/session.py",
        'self._complain_of("FIN", message_id, reason)',
        "pass",
        ("protocol", "unknown_id"),
    ),
    Fault(
        "FIN forgotten",
        "broker/session.py",
        "in channel.finish(consumer, command.ids, self._now):",
        "in ():",
        ("flow", "in_flight"),
    ),
    Fault(
        "no heartbeat",
        "broker/session.py",
        "self.output.say(_HEARTBEAT_FRAME)",
        "pass",
        ("flow", "heartbeats_come_at"),
    ),
    Fault(
        "HTTP errors answered 200",
        "broker/http_messages.py",
        'return Response(status, json_go.dumps({"message": code})',
        'return Response(200, json_go.dumps({"message": code})',
        ("http", "errors_of"),
    ),
    Fault(
        "in-flight lost at exit",
        "broker/channel.py",
        "out.append([run.segment.base + index, count, run.extra + 1])",
        "pass",
        ("disk", "graceful_stop"),
    ),
    Fault(
        "in-flight count always 0",
        "broker/stats.py",
        '"in_flight_count": channel.in_flight_count,',
        '"in_flight_count": 0,',
        ("stats", "stats_count"),
    ),
    Fault(
        "no UNREGISTER",
        "broker/nsqd.py",
        "self._lookup.unregister(event.topic, event.channel)",
        "pass",
        ("cluster", "changes_are_told"),
    ),
    Fault(
        "max-msg-size ignored",
        "proto/parser.py",
        "if size > self._limits.msg_size_max:",
        "if False:",
        ("publish", "wrong_size"),
    ),
    Fault(
        "msg_timeout of IDENTIFY ignored",
        "broker/session.py",
        "consumer.msg_timeout_ns = self.identity.msg_timeout",
        "consumer.msg_timeout_ns = self._host.options.msg_timeout_ns",
        ("semantics", "times_out_and_comes_again"),
    ),
    Fault(
        "--msg-timeout ignored",
        "broker/session.py",
        "msg_timeout=host.options.msg_timeout_ns,",
        "msg_timeout=60_000_000_000,",
        ("semantics", "time_out_of_the_broker"),
    ),
    Fault(
        "sample_rate ignored",
        "broker/session.py",
        "consumer.sample_rate = self.identity.sample_rate",
        "consumer.sample_rate = 0",
        ("flow", "sample_rate_passes"),
    ),
    Fault(
        "RDY ignored",
        "broker/session.py",
        "consumer.ready_count = command.ready_count",
        "consumer.ready_count = 2500",
        ("flow", "no_more_in_flight"),
    ),
    Fault(
        "tombstone ignored",
        "broker/lookupd_registry.py",
        "producer.tombstoned_at_ns = now_ns",
        "pass",
        ("lookupd", "tombstone_hides"),
    ),
    Fault(
        "last message of an MPUB dropped",
        "proto/parser.py",
        'return Publish(b"MPUB", topic, bodies, 1, 0), end',
        'return Publish(b"MPUB", topic, bodies[:-1] or bodies, 1, 0), end',
        ("publish", "every_message_of_an_mpub"),
    ),
    Fault(
        "pause of a topic ignored",
        "broker/topic.py",
        "return self.started and not self.paused and bool(self.channels)",
        "return self.started and bool(self.channels)",
        ("control", "paused_topic"),
    ),
    Fault(
        "pause of a channel ignored",
        "broker/channel.py",
        "if self.paused or self.deleted or consumer.departed:",
        "if self.deleted or consumer.departed:",
        ("control", "paused_channel"),
    ),
    Fault(
        "pause of a channel not persisted",
        "broker/metadata.py",
        '{"name": channel, "paused": paused}',
        '{"name": channel, "paused": False}',
        ("control", "pause_survives"),
    ),
    Fault(
        "pause of a topic not persisted",
        "broker/metadata.py",
        '"paused": topic.paused,',
        '"paused": False,',
        ("control", "pause_survives"),
    ),
    Fault(
        "messages never time out",
        "broker/channel.py",
        "                self._expire(consumer, now)\n",
        "",
        ("semantics", "times_out_and_comes_again"),
    ),
    Fault(
        "timestamp in ms",
        "broker/batch.py",
        "self.segments.append(new_segment(bodies, lengths, base, prefix, first, now, due))",
        "self.segments.append(new_segment(bodies, lengths, base, prefix, first, now // 1_000_000, due))",
        ("publish", "timestamp"),
    ),
    Fault(
        "TOUCH without effect",
        "broker/channel.py",
        "consumer.in_flight.retime(run, index, count, deadline)",
        "pass",
        ("semantics", "touch_extends"),
    ),
    Fault(
        "HTTPS clients block everybody",
        "broker/tls.py",
        "GeventContext(ssl.PROTOCOL_TLS_SERVER)",
        "ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)",
        ("tls_compression", "https_clients_that_say_nothing"),
    ),
    Fault(
        "statsd told too seldom",
        "broker/statsd_push.py",
        "due = max(due + interval_seconds, monotonic())",
        "due = monotonic() + interval_seconds",
        ("process", "statsd_is_told"),
    ),
]


def use_copy(folder: Path) -> Mapping[str, str]:
    """By scripts that start the daemons from it."""
    for module in ("nsqd", "nsqlookupd"):
        script = folder / module
        script.write_text(SCRIPT.format(python=sys.executable, folder=str(folder), module=module))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    # What a fault keeps from coming is waited for in vain.
    return {"NSQ_OURS_BIN": str(folder), "NSQ_PATIENCE_SECONDS": "10"}


if __name__ == "__main__":
    suite = Suite(ROOT / "tests" / "conformance", "on-ours", use_copy)
    sys.exit(main("Does the conformance suite see faults in the broker?", suite, FAULTS))
