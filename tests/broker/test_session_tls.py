"""A session and the time that its client takes for the TLS handshake."""

import ssl

import pytest
from simulation.certificates import Certificates
from simulation.session_world import SECOND, Client, World, greeted

from pyspark_nsq.broker.output import OK_FRAME
from pyspark_nsq.proto.commands import identify
from pyspark_nsq.proto.frames import RESPONSE, encode_frame

HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")


class TlsPeer:
    """A client that has asked for TLS, with a heartbeat every second."""

    def __init__(self, world: World, certificates: Certificates) -> None:
        world.tls_context = certificates.server()
        self._world = world
        self.client: Client = greeted(world)
        self.client.say(identify({"feature_negotiation": True, "tls_v1": True, "heartbeat_interval": 1000}))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = certificates.client().wrap_bio(self._incoming, self._outgoing)

    def shake(self) -> bool:
        """One step of the handshake; whether it is done."""
        self._hear()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.client.session.receive(self._outgoing.read(), self._world.now)
        return True

    def heard(self) -> bytes:
        self._hear()
        try:
            return self._tls.read(1 << 16)
        except ssl.SSLWantReadError:
            return b""

    def _hear(self) -> None:
        self._world.turn.touch(self.client)
        self._world.run()
        self._incoming.write(self.client.received)
        self.client.received = b""


@pytest.fixture
def peer(world: World, certificates: Certificates) -> TlsPeer:
    return TlsPeer(world, certificates)


def test_a_slow_handshake_is_disturbed_by_no_heartbeat(peer: TlsPeer, world: World):
    assert not peer.shake()
    world.sleep(4 * SECOND, peer.client)
    assert peer.shake()
    assert peer.heard() == OK_FRAME
    world.sleep(SECOND, peer.client)
    assert peer.heard() == HEARTBEAT
    assert not peer.client.session.finished
    world.sleep(SECOND, peer.client)
    assert peer.client.session.finished


def test_a_handshake_has_its_time(peer: TlsPeer, world: World):
    assert not peer.shake()
    world.sleep(5 * SECOND - 1, peer.client)
    assert not peer.client.session.finished
    world.sleep(1, peer.client)
    assert peer.client.session.finished
    assert b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout" in peer.client.received
