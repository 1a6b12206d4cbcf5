"""A receiver on an executor's host: it serves one query, and ends with it."""

import logging
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import Final

import grpc

from pyspark_nsq.connector.asking import register, tell_failure
from pyspark_nsq.connector.channels import PORTS_S, listen, make_server
from pyspark_nsq.connector.executors import executors, folder_prefix
from pyspark_nsq.connector.folders import new_socket, sweep
from pyspark_nsq.connector.hosts import address_in, address_toward, identity_of
from pyspark_nsq.connector.receiver_host import HostService
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.stop_signal import StopSignal
from pyspark_nsq.connector.ways import Way
from pyspark_nsq.proto import receiver_pb2_grpc

log = logging.getLogger(__name__)

_THREADS_MAX: Final = 256
_SERVER_GRACE_S: Final = 0.5
_RETRY_S: Final = 0.2
# Others' folders are left alone for so long, whoever may be about to use them.
_STALE_S: Final = 60.0


class HostedReceiver:
    def __init__(self, way: Way, folder: Path, stopping: StopSignal) -> None:
        assert way.starting
        self._way = way
        self._starting = way.starting
        self._folder = folder
        self._stopping = stopping
        self._socket = new_socket(folder)
        self._service = HostService(way.token, self._socket)

    def run(self, look_s: float) -> None:
        """Serve until there is nobody to serve, and leave nothing behind."""
        server = make_server(_THREADS_MAX)
        try:
            sweep(self._folder.parent, folder_prefix(), _STALE_S, self._folder)
            receiver_pb2_grpc.add_ReceiverServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
            address = self._listen(server)
            server.start()
            if self._register(address):
                self._serve(look_s)
        except Exception as error:
            log.exception("the receiver failed")
            tell_failure(self._way, f"{socket.gethostname()}: {error}")
        finally:
            self._service.stop()
            server.stop(_SERVER_GRACE_S).wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self, server: grpc.Server) -> str:
        host = self._host()
        port = listen(server, host, self._starting.ports, self._way.tls, patience_s=PORTS_S)
        if self._socket:
            server.add_insecure_port(f"unix:{self._socket}")
        return str(Address(host, port))

    def _host(self) -> str:
        """Where others reach this host: at its address in their network, or the one that leads to the driver."""
        if self._starting.network:
            return address_in(self._starting.network)
        return address_toward(self._way.coordinator.rpartition(":")[0].strip("[]"))

    def _register(self, address: str) -> bool:
        instance = secrets.token_hex(8)
        deadline = time.monotonic() + self._starting.lease_s
        while not self._stopping.wait(0):
            try:
                return register(self._way, identity_of(self._folder), address, instance)
            except grpc.RpcError as error:
                if time.monotonic() > deadline:
                    log.warning("the driver at %s cannot be reached: %s", self._way.coordinator, error)
                    return False
                self._stopping.wait(_RETRY_S)
        return False

    def _serve(self, look_s: float) -> None:
        """Until the session that the coordinator begins has ended, or the executors have."""
        deadline = time.monotonic() + self._starting.lease_s
        begun = False
        while not self._stopping.wait(look_s):
            begun = begun or bool(self._service.sessions)
            if begun and not self._service.sessions:
                return
            if not begun and time.monotonic() > deadline:
                log.warning("the driver at %s did not call back", self._way.coordinator)
                return
            if not executors(self._folder):
                log.info("no executor is left on this host")
                return
