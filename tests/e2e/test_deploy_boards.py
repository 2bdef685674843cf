"""k1 deploy on virtual boards of the image: what only they can show."""

from __future__ import annotations

import time

from boards import Boards, deploy

from k1.drivers.patience import scaled
from support.deploying import k1


def test_a_second_deploy_changes_nothing_and_is_quick(boards: Boards) -> None:
    assert len(set(boards.current)) == 1
    begun = time.monotonic()
    again = deploy(boards.fleet)
    assert again["changed"] is False
    assert again["health"]["status"] == "ok"
    assert time.monotonic() - begun < scaled(10)


def test_status_shows_the_image_that_all_boards_run(boards: Boards) -> None:
    rows = k1("status", "-f", boards.fleet, "--json").json["nodes"]
    (image,) = {row["image"] for row in rows}
    assert f"IMAGE_VERSION={image}" in boards.sh(0, "cat /etc/os-release").splitlines()
    assert len(image) == 16


def test_one_changed_byte_sends_little_and_a_power_cut_on_trial_goes_back(boards: Boards) -> None:
    (before,) = set(boards.current)
    other = boards.another("next")
    outcome = deploy(other)
    assert all(0 < count <= 65536 for count in outcome["literal"].values()), outcome["literal"]
    assert set(boards.current) == {outcome["release"]}

    # A switch that nobody confirms, and the power goes: what was there before is back at the next start.
    boards.sh(1, f"/opt/k1/releases/{before}/bin/k1-release switch {before}")
    boards.lab.kill(1)
    boards.power_on()
    assert set(boards.current) == {outcome["release"]}
    assert deploy(other)["health"]["status"] == "ok"
    k1("rollback", "-f", other)
    assert set(boards.current) == {before}


def test_a_board_with_other_settings_by_hand_gets_its_own_back(boards: Boards) -> None:
    interface = "$(ip -o -4 addr | sed -n 's/^[0-9]*: \\([^ ]*\\) *inet 192.168.1.*/\\1/p')"
    boards.sh(2, f"ip link set dev {interface} mtu 1500")
    assert deploy(boards.fleet, "--dry-run")["nodes"]["k1-2"]["network"]["detail"] == "MTU 1500 becomes 9000"
    assert deploy(boards.fleet)["nodes"]["k1-2"]["network"]["state"] == "done"
    assert deploy(boards.fleet)["changed"] is False
