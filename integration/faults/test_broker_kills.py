"""200 kills of nsqd under load; the seed can be set with NSQ_FAULTS_SEED, the number of kills with NSQ_FAULTS_KILLS."""

import os
from pathlib import Path

import pytest

from faults.broker_kills import VARIANTS, suffer
from faults.report import append
from faults.scenario import Context, Scenario, own_brokers, run

SEED = int(os.environ.get("NSQ_FAULTS_SEED", "20261118"))
KILLS = int(os.environ.get("NSQ_FAULTS_KILLS", "200"))


LIMIT_S = 60.0 + KILLS * 3


@pytest.mark.timeout(LIMIT_S + 60)
def test_nothing_acknowledged_is_lost_and_no_old_fin_is_undone(tmp_path: Path) -> None:
    print(f"NSQ_FAULTS_SEED={SEED}")
    together = Scenario(
        "broker-kills-*",
        lambda context: suffer(context.impl, context.folder, context.seed, KILLS, VARIANTS),
        "kill -9 under load",
        "nsqd",
        ("ours",),
    )
    rows = run(together, Context(own_brokers(), tmp_path, SEED, limit_s=LIMIT_S))
    for row in rows:
        append(row)
    assert all(row.passed for row in rows), rows
