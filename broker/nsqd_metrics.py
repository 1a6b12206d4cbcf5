"""GET /metrics of nsqd: what /stats tells, as Prometheus reads it, without a line for each client."""

from collections.abc import Iterable, Sequence

from pyspark_nsq.broker.durations import SECOND
from pyspark_nsq.broker.engine import Engine
from pyspark_nsq.broker.prometheus import COUNTER, GAUGE, Page, Sample
from pyspark_nsq.broker.session import Session
from pyspark_nsq.broker.stats import TopicStats

_TOPIC_FAMILIES = (
    ("nsqd_topic_messages_total", COUNTER, "Messages published to the topic.", "message_count"),
    ("nsqd_topic_message_bytes_total", COUNTER, "Bytes of the bodies published to the topic.", "message_bytes"),
    ("nsqd_topic_depth", GAUGE, "Messages that are not yet in any channel.", "depth"),
    ("nsqd_topic_backend_depth", GAUGE, "The part of the topic's depth that is on disk only.", "backend_depth"),
    ("nsqd_topic_paused", GAUGE, "1 while the topic is paused.", "paused"),
)
_CHANNEL_FAMILIES = (
    ("nsqd_channel_messages_total", COUNTER, "Messages that came into the channel.", "message_count"),
    ("nsqd_channel_requeues_total", COUNTER, "Messages that consumers gave back.", "requeue_count"),
    ("nsqd_channel_timeouts_total", COUNTER, "Messages whose consumer was too slow.", "timeout_count"),
    ("nsqd_channel_depth", GAUGE, "Messages that wait for a consumer.", "depth"),
    ("nsqd_channel_backend_depth", GAUGE, "The part of the channel's depth that is on disk only.", "backend_depth"),
    ("nsqd_channel_in_flight", GAUGE, "Messages that consumers hold.", "in_flight_count"),
    ("nsqd_channel_deferred", GAUGE, "Messages that wait for their time.", "deferred_count"),
    ("nsqd_channel_clients", GAUGE, "Consumers of the channel.", "client_count"),
    ("nsqd_channel_paused", GAUGE, "1 while the channel is paused.", "paused"),
)


def metrics_page(engine: Engine, topics: Sequence[TopicStats], sessions: Iterable[Session], started_at: int) -> Page:
    page = Page()
    page.add("nsqd_healthy", GAUGE, "1 while messages can be written.", int(engine.health is None))
    page.add("nsqd_clients", GAUGE, "TCP connections open.", len(list(sessions)))
    page.add("nsqd_topics", GAUGE, "Topics.", len(topics))
    page.add("nsqd_channels", GAUGE, "Channels of all topics.", sum(len(topic["channels"]) for topic in topics))
    for name, kind, text, key in _TOPIC_FAMILIES:
        page.add(name, kind, text, [({"topic": topic["topic_name"]}, int(topic[key])) for topic in topics])  # type: ignore[literal-required]
    page.add(
        "nsqd_topic_log_bytes",
        GAUGE,
        "Bytes on disk of the topic's log.",
        [({"topic": topic.name}, topic.log_bytes) for topic in engine.topics.values()],
    )
    for name, kind, text, key in _CHANNEL_FAMILIES:
        page.add(name, kind, text, _channel_samples(topics, key))
    page.add("nsqd_e2e_latency_seconds", GAUGE, "From publish to FIN, by quantile.", _latency_samples(topics))
    page.add_process(started_at / SECOND)
    return page


def _channel_samples(topics: Iterable[TopicStats], key: str) -> list[Sample]:
    return [
        ({"topic": topic["topic_name"], "channel": channel["channel_name"]}, int(channel[key]))  # type: ignore[literal-required]
        for topic in topics
        for channel in topic["channels"]
    ]


def _latency_samples(topics: Iterable[TopicStats]) -> list[Sample]:
    return [
        (
            {
                "topic": topic["topic_name"],
                "channel": channel["channel_name"],
                "quantile": f"{item['quantile']:g}",
            },
            item["value"] / SECOND,
        )
        for topic in topics
        for channel in topic["channels"]
        for item in channel["e2e_processing_latency"]["percentiles"] or ()
    ]
