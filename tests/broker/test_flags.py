"""Command line and config file, as Go's nsqd and nsqlookupd read them."""

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyspark_nsq.broker.durations import MINUTE, SECOND
from pyspark_nsq.broker.flags import ExitError, config_values, resolve
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.nsqd_options import DEPRECATED_FLAGS, NsqdOptions, TlsRequired


def nsqd(*args: str) -> NsqdOptions:
    return resolve(NsqdOptions, "nsqd", args, DEPRECATED_FLAGS)


def refused(*args: str) -> ExitError:
    with pytest.raises(ExitError) as caught:
        nsqd(*args)
    return caught.value


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["-mem-queue-size", "5"], "mem_queue_size", 5),
        (["--mem-queue-size=5"], "mem_queue_size", 5),
        (["--mem-queue-size=0x10"], "mem_queue_size", 16),
        (["--mem-queue-size=010"], "mem_queue_size", 8),
        (["--mem-queue-size=1_000"], "mem_queue_size", 1000),
        (["--mem-queue-size=1", "--mem-queue-size=2"], "mem_queue_size", 2),
        (["--msg-timeout=1m30s"], "msg_timeout_ns", 90 * SECOND),
        (["--deflate=false"], "deflate", False),
        (["--deflate=F"], "deflate", False),
        (["--statsd-exclude-ephemeral"], "statsd_exclude_ephemeral", True),
        (["--statsd-exclude-ephemeral", "false"], "statsd_exclude_ephemeral", True),
        (["--http-address="], "http_address", ""),
        (["--statsd-prefix", "--x"], "statsd_prefix", "--x"),
        (["--tcp-address=a=b"], "tcp_address", "a=b"),
        (["--lookupd-tcp-address=a", "-lookupd-tcp-address", "b,c"], "lookupd_tcp_addresses", ("a", "b,c")),
        (
            ["--e2e-processing-latency-percentile=0.5,0.99", "--e2e-processing-latency-percentile=0.9"],
            "e2e_processing_latency_percentiles",
            (0.99, 0.9, 0.5),
        ),
        (["--log-level=WARN"], "log_level", 3),
        (["--tls-required"], "tls_required", TlsRequired.YES),
        (["--tls-required=TCP-HTTPS"], "tls_required", TlsRequired.EXCEPT_HTTP),
        (["--tls-required", "tcp-https"], "tls_required", TlsRequired.YES),
        (["--tls-min-version=TLS1.3"], "tls_min_version", 0x0304),
        (["--tls-min-version="], "tls_min_version", 0x0303),
        (["--worker-id", "--verbose", "--node-id=7"], "node_id", 7),
        (["word", "--node-id=9999999"], "mem_queue_size", 10000),
        (["--", "--nonsense"], "mem_queue_size", 10000),
        (["-"], "mem_queue_size", 10000),
    ],
)
def test_go_syntax(args: list[str], field: str, value: object) -> None:
    assert getattr(nsqd(*args), field) == value


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nonsense"], "flag provided but not defined: -nonsense"),
        (["---x"], "bad flag syntax: ---x"),
        (["-=x"], "bad flag syntax: -=x"),
        (["--node-id"], "flag needs an argument: -node-id"),
        (["--node-id=x"], 'invalid value "x" for flag -node-id: parse error'),
        (
            ["--node-id=99999999999999999999"],
            'invalid value "99999999999999999999" for flag -node-id: value out of range',
        ),
        (["--node-id= 1"], 'invalid value " 1" for flag -node-id: parse error'),
        (["--deflate=maybe"], 'invalid boolean value "maybe" for -deflate: parse error'),
        (["--msg-timeout=5"], 'invalid value "5" for flag -msg-timeout: '),
        (["--log-level=warning"], 'invalid value "warning" for flag -log-level: invalid log level'),
        (["--tls-min-version=ssl3.0"], 'invalid value "ssl3.0" for flag -tls-min-version: unknown TLS version'),
        (["--verbose=x"], 'invalid boolean value "x" for -verbose: parse error'),
    ],
)
def test_bad_command_lines_end_with_usage_and_code_2(args: list[str], message: str) -> None:
    end = refused(*args)
    assert end.code == 2
    assert end.err.startswith(message)
    assert "\nUsage of nsqd:\n" in end.err


def test_version_and_help() -> None:
    version = refused("--version", "--config=/nonexistent")
    assert version.code == 0
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/python3\.\d+\.\d+(-compiled)?\)\n", version.out)
    help_asked = refused("-h")
    assert help_asked.code == 0
    assert help_asked.err.startswith("Usage of nsqd:\n")


@pytest.mark.parametrize(
    ("toml", "field", "value"),
    [
        ("id = 5", "node_id", 5),
        ("node_id = 5\nunknown = [1]", "max_rdy_count", 2500),
        ('mem_queue_size = "7"', "mem_queue_size", 7),
        ('msg_timeout = "2m"', "msg_timeout_ns", 2 * MINUTE),
        ("msg_timeout = 1500", "msg_timeout_ns", 1500 * 10**6),
        ('nsqlookupd_tcp_addresses = ["a:1", "b:2"]', "lookupd_tcp_addresses", ("a:1", "b:2")),
        ('nsqlookupd_tcp_addresses = "a:1,b:2"', "lookupd_tcp_addresses", ("a:1", "b:2")),
        ("e2e_processing_latency_percentiles = [0.5, 1]", "e2e_processing_latency_percentiles", (0.5, 1.0)),
        ('e2e_processing_latency_percentiles = "0.5, 1.0"', "e2e_processing_latency_percentiles", (0.5, 1.0)),
        ("deflate = false", "deflate", False),
        ('deflate = "false"', "deflate", False),
        ("deflate = 0", "deflate", False),
        ('log_level = "error"', "log_level", 4),
        ('tls_required = "tcp-https"', "tls_required", TlsRequired.EXCEPT_HTTP),
        ("tls_required = true", "tls_required", TlsRequired.YES),
        ('tls_min_version = "tls1.0"', "tls_min_version", 0x0301),
    ],
)
def test_config_file(tmp_path: Path, toml: str, field: str, value: object) -> None:
    file = tmp_path / "nsqd.toml"
    file.write_text(toml)
    assert getattr(nsqd(f"--config={file}"), field) == value


@pytest.mark.parametrize(
    "toml",
    [
        "not toml",
        "mem_queue_size = true",
        "mem_queue_size = 1.5",
        'mem_queue_size = "0x10"',
        "mem_queue_size = 99999999999999999999999",
        'msg_timeout = "soon"',
        'log_level = "loud"',
        "data_path = 5",
        "nsqlookupd_tcp_addresses = [1]",
        "nsqlookupd_tcp_addresses = 5",
        'deflate = "maybe"',
        "deflate = []",
        'tls_required = "perhaps"',
        'e2e_processing_latency_percentiles = ["x"]',
    ],
)
def test_a_config_file_that_cannot_be_used_ends_with_code_1(tmp_path: Path, toml: str) -> None:
    file = tmp_path / "nsqd.toml"
    file.write_text(toml)
    end = refused(f"--config={file}")
    assert end.code == 1
    assert end.fatal
    assert refused(f"--config={tmp_path / 'absent'}").code == 1


def test_command_line_wins_over_file_and_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.toml"
    file.write_text("mem_queue_size = 1\nmax_rdy_count = 2\n")
    options = nsqd(f"--config={file}", "--mem-queue-size=3")
    assert (options.mem_queue_size, options.max_rdy_count, options.sync_every) == (3, 2, 2500)


def test_config_values_have_gos_keys_and_raw_values() -> None:
    values = config_values(nsqd("--node-id=3", "--lookupd-tcp-address=a:1", "--msg-timeout=2s"))
    assert values["id"] == 3
    assert values["nsqlookupd_tcp_addresses"] == ("a:1",)
    assert values["msg_timeout"] == 2 * SECOND
    assert values["log_level"] == 2
    assert values["tls_min_version"] == 0x0303
    assert not {"config", "version", "verbose", "worker_id", "node_id"} & values.keys()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"max_deflate_level": 10}, "--max-deflate-level must be"),
        ({"node_id": 1024}, "--node-id must be"),
        ({"node_id": -1}, "--node-id must be"),
        ({"sync_timeout_ns": 0}, "--sync-timeout must be positive"),
        ({"statsd_interval_ns": -1}, "--statsd-interval must be positive"),
        ({"tls_cert": "c"}, "--tls-cert and --tls-key"),
        ({"tls_key": "k"}, "--tls-cert and --tls-key"),
        ({"tls_required": TlsRequired.YES}, "cannot require TLS"),
        ({"tls_client_auth_policy": "require"}, "cannot require TLS"),
        ({"tls_client_auth_policy": "require", "tls_cert": "c", "tls_key": "k"}, None),
        ({"e2e_processing_latency_percentiles": (0.5, 1.1)}, "invalid E2E"),
        ({"e2e_processing_latency_percentiles": (float("nan"),)}, "invalid E2E"),
        ({"auth_http_request_method": "POST"}, "--auth-http-request-method must be"),
    ],
)
def test_what_no_single_flag_can_tell(changes: dict[str, Any], problem: str | None) -> None:
    said = dataclasses.replace(NsqdOptions(), **changes).problem()
    assert said is None if problem is None else said is not None and said.startswith(problem)


@pytest.mark.parametrize(("options_type", "program"), [(NsqdOptions, "nsqd"), (LookupdOptions, "nsqlookupd")])
def test_usage_lists_every_flag_of_go_with_its_default(go_nsq: Path, options_type: type, program: str) -> None:
    go = subprocess.run([go_nsq / program, "-h"], capture_output=True, text=True).stderr
    with pytest.raises(ExitError) as caught:
        resolve(options_type, program, ["-h"], DEPRECATED_FLAGS if program == "nsqd" else None)
    ours = caught.value.err

    def flags(usage: str) -> dict[str, str]:
        return dict(re.findall(r"^  (-\S+.*)\n    \t(.*)$", usage, re.MULTILINE))

    differing = {name for name, text in flags(go).items() if flags(ours).get(name) != text}
    assert differing <= {"-tls-min-version value"}  # ours starts at TLS 1.2
    assert flags(go)
