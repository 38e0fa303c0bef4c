"""Instances: made, kept alive and closed, through the real SDK."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import httpx
import pytest
from conftest import QUICK
from fleet_platform import API, KEY, Fault, Platform

import mcpenv_fleet.platform
from mcpenv_fleet import FleetEnv, FleetFailure, FleetOptions, FleetTask, PlatformFailed
from mcpenv_fleet.options import CALL_TIMEOUT_S, HTTP_TIMEOUT_S
from mcpenv_fleet.retries import OF_CREATES, Retries

MAKE = "POST /v1/env/instances"


def made_with(platform: Platform, **options: Any) -> dict[str, Any]:
    """Return what the platform was asked for."""
    env, _ = FleetEnv.from_fleet("fira:1.2", **QUICK, **options)
    env.close()
    return next(iter(platform.instances.values())).request


def test_line_10_make_is_tried_three_times_with_pauses_that_double_from_two_seconds() -> None:
    assert Retries(tries=3, first_pause_s=2.0) == OF_CREATES == FleetOptions().of_creates


@pytest.mark.slow
def test_lines_8_and_10_the_pauses_are_real(platform: Platform) -> None:
    platform.fail(MAKE, Fault(status=503, times=2))
    platform.fail(f"{API} tools/list", Fault(status=503, times=2))
    started = time.monotonic()
    env, _ = FleetEnv.from_fleet("fira")
    env.close()
    assert time.monotonic() - started >= 2 + 4 + 1 + 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_line_10_a_transient_failure_of_make_is_tried_again(
    platform: Platform, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    platform.fail(MAKE, Fault(status=status, times=2))
    made_with(platform)
    assert platform.count(MAKE) == 3
    assert [message for message in caplog.messages if message.startswith("make fira:1.2: try 2 of 3 failed")]


def test_line_10_make_fails_after_three_tries(platform: Platform) -> None:
    platform.fail(MAKE, Fault(status=503, times=9))
    with pytest.raises(PlatformFailed, match=r"make fira:1\.2 failed") as failure:
        made_with(platform)
    assert (failure.value.http_status, failure.value.transient) == (503, True)
    assert platform.count(MAKE) == 3


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (400, "no such region: try again, the health check failed"),
        (401, "who are you?"),
        (403, {"error_type": "instance_limit_exceeded", "message": "503 of 500 instances"}),
        (404, "not found"),
        (409, "conflict"),
    ],
)
def test_line_10_a_final_failure_of_make_is_told_by_its_status_and_not_repeated(
    platform: Platform, status: int, detail: Any
) -> None:
    platform.fail(MAKE, Fault(status=status, body={"detail": detail}, times=9))
    with pytest.raises(PlatformFailed) as failure:
        made_with(platform)
    assert (failure.value.http_status, failure.value.transient) == (status, False)
    assert platform.count(MAKE) == 1


def test_line_10_a_make_that_takes_too_long_is_transient(platform: Platform) -> None:
    platform.fail(MAKE, Fault(hang=True))
    made_with(platform, create_timeout_s=1)
    assert platform.count(MAKE) == 2


def test_line_11_the_data_key_reaches_make_with_its_version(platform: Platform) -> None:
    asked = made_with(platform, data_key="acme", data_version="v3")
    assert (asked["env_key"], asked["env_version"]) == ("fira", "v1.2")
    assert (asked["data_key"], asked["data_version"]) == ("acme", "v3")
    assert FleetOptions(data_key="acme", data_version="v3").spec("fira").data_key == "acme:v3"
    assert FleetOptions(data_key="acme:v4", data_version="v3").spec("fira").data_key == "acme:v4"


def test_line_12_the_image_type_is_none_by_default_and_mcp_for_computer_use(platform: Platform) -> None:
    assert FleetOptions().image_type is None
    assert "image_type" not in made_with(platform)
    task = FleetTask.from_json({"key": "t", "prompt": "p", "env_id": "fira", "task_modality": "computer_use"})
    assert FleetOptions().spec(task.env_key, task).image_type == "mcp"


def test_line_14_a_request_takes_60_seconds_at_most() -> None:
    assert HTTP_TIMEOUT_S == 60.0
    platform = mcpenv_fleet.platform.Platform(KEY)
    assert platform._http.timeout == httpx.Timeout(60.0)
    assert FleetOptions().http_timeout_s == 60.0


def test_line_17_errors_of_close_are_logged_and_closing_twice_closes_once(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    env, _ = FleetEnv.from_fleet("fira", **QUICK)
    platform.fail("DELETE /v1/env/instances/i0", Fault(status=500))
    with caplog.at_level(logging.WARNING, "mcpenv_fleet"):
        env.close()
        env.close()
    assert [message.partition(":")[0] for message in caplog.messages] == ["instance i0 is not closed, and may go on"]
    assert platform.count("DELETE /v1/env/instances/i0") == 1


def test_line_26_the_api_key_is_that_of_the_environment_variable(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_with(platform)
    assert all(seen.headers["authorization"] == f"Bearer {KEY}" for seen in platform.seen)
    monkeypatch.delenv("FLEET_API_KEY")
    with pytest.raises(FleetFailure, match="set FLEET_API_KEY, or pass api_key="):
        FleetEnv.from_fleet("fira")
    made_with(platform, api_key=KEY)


def test_the_api_key_is_in_no_repr() -> None:
    assert KEY not in repr(FleetOptions(api_key=KEY))


def test_line_27_an_operation_of_the_computer_takes_60_seconds_at_most() -> None:
    assert CALL_TIMEOUT_S == FleetOptions().call_timeout_s == 60.0


def test_line_27_variables_and_time_to_live_reach_make(platform: Platform) -> None:
    asked = made_with(platform, env_variables={"LANG": "C"}, ttl_seconds=600, heartbeat_interval=30, region="here")
    assert asked["env_variables"] == {"LANG": "C"}
    assert (asked["ttl_seconds"], asked["heartbeat_interval"], asked["region"]) == (600, 30, "here")


def test_line_27_heartbeats_are_sent_while_an_instance_is_open(platform: Platform) -> None:
    env, _ = FleetEnv.from_fleet("fira", **QUICK, heartbeat_interval=1)
    with env:
        platform.fail("POST /v1/env/instances/i0/heartbeat", Fault(status=500))
        platform.wait_for_beats(2)  # one that is lost does not end the others


def test_line_27_an_instance_that_a_failed_create_made_is_closed_by_its_run_id(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    platform.fail(MAKE, Fault(status=500, before=False))
    env, _ = FleetEnv.from_fleet("fira", **QUICK, run_id="night")
    leaked, kept = platform.instances.values()
    assert (leaked.status, kept.status) == ("stopped", "running")
    assert leaked.request["run_id"] == kept.request["run_id"]
    assert kept.request["run_id"].startswith("night-")
    assert "instance i0 was left behind by a failed create; it is closed" in caplog.messages
    env.close()
    assert platform.running == []


def test_line_27_instances_of_another_create_are_not_closed(platform: Platform) -> None:
    other, _ = FleetEnv.from_fleet("fira", **QUICK, run_id="night")
    platform.fail(MAKE, Fault(status=500, before=False))
    env, _ = FleetEnv.from_fleet("fira", **QUICK, run_id="night")
    assert [instance.status for instance in platform.instances.values()] == ["running", "stopped", "running"]
    env.close()
    other.close()


def test_line_27_an_instance_whose_create_was_cancelled_is_closed(platform: Platform) -> None:
    platform.fail(MAKE, Fault(hang=True, before=False))

    async def give_up() -> None:
        async with asyncio.timeout(3):
            await FleetEnv.from_fleet_async("fira", **QUICK)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    platform.wait_until_none_runs()
    assert len(platform.instances) == 1


def test_line_28_the_sdks_own_retries_are_off(platform: Platform) -> None:
    env, _ = FleetEnv.from_fleet("fira", **QUICK)
    with env:
        platform.fail("POST api/v1/env/reset", Fault(status=503, times=9))
        started = time.monotonic()
        with pytest.raises(PlatformFailed, match="503"):
            env.reset()
        assert platform.count("POST api/v1/env/reset") == 1
        assert time.monotonic() - started < 2  # the SDK's own take 4.5 s
