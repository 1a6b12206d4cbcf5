"""Attackers at the ports, beside honest clients."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from faults import hostile_fleet, hostile_ports, hostile_receiver
from faults.hostile_attacks import Attack, launch
from faults.report import Row
from faults.scenario import Scenario

RunScenario = Callable[[Scenario, str], Sequence[Row]]


SCENARIOS = [*hostile_ports.SCENARIOS, *hostile_receiver.SCENARIOS, *hostile_fleet.SCENARIOS]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_attackers_are_shut_out_and_hurt_nobody(scenario: Scenario, run_scenario: RunScenario) -> None:
    (row,) = run_scenario(scenario, "ours")
    assert row.published > 0
    assert row.runs > 20


def test_an_attacker_who_is_let_be_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.hostile_attacks.PATIENCE_S", 0.2)

    async def be_patient(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")

    async def scene() -> str:
        server = await asyncio.start_server(be_patient, "127.0.0.1", 0)
        async with server:
            outcome = await launch(server.sockets[0].getsockname(), Attack("knock", b"knock", drip=b"x"))
        return outcome.complaint

    assert asyncio.run(scene()) == "knock: still connected after 0.2 s"
