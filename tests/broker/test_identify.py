"""IDENTIFY: every bound at its limit and beyond, Go's JSON rules, the exact bytes of the answer."""

import pytest

from pyspark_nsq.broker.identify import IdentifyError, Identity, identify
from pyspark_nsq.broker.nsqd_options import NsqdOptions

OPTIONS = NsqdOptions()
MS = 1_000_000


def ask(
    body: str,
    options: NsqdOptions = OPTIONS,
    current: Identity | None = None,
    tls_available: bool = False,
    upgradable: bool = True,
) -> tuple[Identity, bytes]:
    return identify(
        body.encode(), current or Identity("ip", "ip"), options, tls_available=tls_available, upgradable=upgradable
    )


def test_answer_without_negotiation_is_ok_and_grants_nothing():
    granted, answer = ask('{"snappy":true,"deflate":true,"client_id":"me"}')
    assert answer == b"OK"
    assert not granted.snappy
    assert not granted.deflate
    assert (granted.client_id, granted.hostname) == ("me", "")


def test_negotiated_answer_byte_by_byte():
    _, answer = ask('{"feature_negotiation":true}')
    assert answer == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
        b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250}'
    )


def test_topology_of_the_server_comes_last():
    _, answer = ask('{"feature_negotiation":true}', NsqdOptions(topology_region="r", topology_zone="z"))
    assert answer.endswith(b',"topology_region":"r","topology_zone":"z"}')


@pytest.mark.parametrize(
    ("field", "good", "bad", "text"),
    [
        ("heartbeat_interval", [-1, 0, 1000, 60000], [-2, 1, 999, 60001], "heartbeat interval"),
        ("output_buffer_timeout", [-1, 0, 25, 30000], [-2, 1, 24, 30001], "output buffer timeout"),
        ("output_buffer_size", [-1, 0, 64, 65536], [-2, 1, 63, 65537], "output buffer size"),
        ("sample_rate", [0, 1, 99], [-1, 100], "sample rate"),
        ("msg_timeout", [0, 1000, 900000], [-1, 1, 999, 900001], "msg timeout"),
    ],
)
def test_bounds(field: str, good: list[int], bad: list[int], text: str):
    for value in good:
        ask(f'{{"{field}":{value}}}')
    for value in bad:
        with pytest.raises(IdentifyError) as refused:
            ask(f'{{"{field}":{value}}}')
        assert (refused.value.code, refused.value.text) == ("E_BAD_BODY", f"IDENTIFY {text} ({value}) is invalid")


@pytest.mark.parametrize(
    ("body", "attribute", "value"),
    [
        ('{"heartbeat_interval":-1}', "heartbeat_interval", 0),
        ('{"HEARTBEAT_interval":1000}', "heartbeat_interval", 1000 * MS),
        ('{"output_buffer_timeout":-1}', "output_buffer_timeout", 0),
        ('{"output_buffer_size":-1,"output_buffer_timeout":100}', "output_buffer_size", 1),
        ('{"output_buffer_size":-1,"output_buffer_timeout":100}', "output_buffer_timeout", 0),
        ('{"sample_rate":1,"sample_rate":2}', "sample_rate", 2),
        ('{"msg_timeout":null}', "msg_timeout", 60_000 * MS),
        ("null", "client_id", ""),
        ('{"unknown":[{}]}', "client_id", ""),
    ],
)
def test_accepted(body: str, attribute: str, value: object):
    assert getattr(ask(body)[0], attribute) == value


@pytest.mark.parametrize("value", ["[]", "1", '"x"', "", "{", "{}x", '{"msg_timeout":1000.0}', '{"msg_timeout":1e3}',
                                   '{"msg_timeout":"1000"}', '{"snappy":1}', '{"client_id":1}'])  # fmt: skip
def test_what_go_does_not_decode(value: str):
    with pytest.raises(IdentifyError) as refused:
        ask(value)
    assert refused.value.args == ("E_BAD_BODY", "IDENTIFY failed to decode JSON body")


def test_the_first_wrong_field_is_named():
    body = '{"msg_timeout":1,"sample_rate":100,"output_buffer_size":1,"output_buffer_timeout":1,"heartbeat_interval":1}'
    with pytest.raises(IdentifyError, match="heartbeat interval"):
        ask(body)
    with pytest.raises(IdentifyError, match="output buffer timeout"):
        ask(body.replace('"heartbeat_interval":1', '"heartbeat_interval":0'))


@pytest.mark.parametrize(
    ("asked", "maximum", "granted"), [(9, 6, 6), (9, 9, 9), (3, 6, 3), (0, 6, 6), (-1, 6, 6), (0, 4, 4)]
)
def test_deflate_level(asked: int, maximum: int, granted: int):
    identity, answer = ask(
        f'{{"feature_negotiation":true,"deflate":true,"deflate_level":{asked}}}', NsqdOptions(max_deflate_level=maximum)
    )
    assert identity.deflate_level == granted
    assert b'"deflate_level":%d,' % granted in answer


def test_both_compressions_are_refused_unless_the_server_disables_one():
    body = '{"feature_negotiation":true,"deflate":true,"snappy":true}'
    with pytest.raises(IdentifyError) as refused:
        ask(body)
    assert refused.value.args == ("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    assert ask(body, NsqdOptions(deflate=False))[0].snappy
    assert ask(body, NsqdOptions(snappy=False))[0].deflate


def test_tls_is_granted_where_there_is_a_certificate():
    body = '{"feature_negotiation":true,"tls_v1":true}'
    assert not ask(body)[0].tls
    assert ask(body, tls_available=True)[0].tls


def test_a_second_upgrade_is_not_granted():
    body = '{"feature_negotiation":true,"tls_v1":true,"snappy":true}'
    granted, answer = ask(body, tls_available=True, upgradable=False)
    assert not granted.tls
    assert not granted.snappy
    assert b'"tls_v1":false' in answer


def test_zero_keeps_what_an_earlier_identify_has_set():
    first, _ = ask('{"heartbeat_interval":5000,"msg_timeout":2000,"output_buffer_timeout":100,"output_buffer_size":64}')
    second, _ = ask("{}", current=first)
    assert second.heartbeat_interval == 5000 * MS
    assert second.msg_timeout == 2000 * MS
    assert second.output_buffer_timeout == 100 * MS
    assert second.output_buffer_size == 64
