"""nsq-receiver: a receiver process that an operator starts, for queries with ``receivers=host:port``.

It serves many queries, one after the other or at once. Whoever knows its token can have it read any topic.
"""

import argparse
import logging
import os
import signal
import sys
from typing import Final

from pyspark_nsq.connector.channels import ListenError, listen, make_server
from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.folders import locked_folder, new_socket
from pyspark_nsq.connector.option_kinds import ADDRESSES
from pyspark_nsq.connector.receiver_host import HostService
from pyspark_nsq.connector.receiver_options import read_token
from pyspark_nsq.connector.receiver_setup import set_up_process
from pyspark_nsq.connector.receiver_tls import ReceiverTls, read_file
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.stop_signal import StopSignal
from pyspark_nsq.proto import receiver_pb2_grpc

log = logging.getLogger(__name__)

_THREADS_MAX: Final = 1024
_FOLDER_PREFIX: Final = "nsq-receiver-"
_SERVER_GRACE_S: Final = 0.5
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def main(arguments: list[str] | None = None) -> None:
    told = _parser().parse_args(arguments)
    set_up_process(told.log_level)
    try:
        token = read_token(told.token_file, "--token-file")
        tls = _tls(told)
        _serve(told.listen, token, tls)
    except (OptionError, ListenError, OSError, ValueError) as error:
        sys.exit(f"nsq-receiver: {error}")
    logging.shutdown()
    # Threads that still connect somewhere would keep the process for their time-out.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nsq-receiver", description="Receives from nsqds for Spark queries.")
    parser.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT", help="where queries find it")
    parser.add_argument(
        "--token-file", required=True, metavar="PATH", help="the file with the token that queries have to know"
    )
    parser.add_argument("--tls-cert", metavar="PATH", help="the certificate to show, as PEM; without it no TLS")
    parser.add_argument("--tls-key", metavar="PATH", help="its key, as PEM, not encrypted")
    parser.add_argument("--log-level", choices=_LEVELS, default="INFO", type=str.upper)
    return parser


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    # 0 is any port, which is then logged.
    address: Address = ADDRESSES.parse(f"{host}:1" if port == "0" else text)[0]
    return address._replace(port=0) if port == "0" else address


def _tls(told: argparse.Namespace) -> ReceiverTls | None:
    if bool(told.tls_cert) != bool(told.tls_key):
        raise ValueError("--tls-cert and --tls-key: one of them is set, both or none have to be")
    if not told.tls_cert:
        return None
    read_file(told.tls_cert)
    read_file(told.tls_key)
    return ReceiverTls("", told.tls_cert, told.tls_key)


def _serve(address: Address, token: str, tls: ReceiverTls | None) -> None:
    # The folder is private: what goes over its socket is not encrypted.
    with StopSignal(signal.SIGTERM, signal.SIGINT) as stopping, locked_folder(_FOLDER_PREFIX) as folder:
        socket = new_socket(folder)
        service = HostService(token, socket)
        server = make_server(_THREADS_MAX)
        receiver_pb2_grpc.add_ReceiverServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        port = listen(server, address.host, [address.port], tls, named="--listen")
        if socket:
            server.add_insecure_port(f"unix:{socket}")
        server.start()
        log.info("listening on %s", address._replace(port=port))
        stopping.wait()
        service.stop()
        server.stop(_SERVER_GRACE_S).wait()


if __name__ == "__main__":
    main()
