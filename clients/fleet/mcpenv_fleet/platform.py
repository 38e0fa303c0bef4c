"""The platform's HTTP API, by its SDK. Importing the SDK takes a second: import this module on use.

Of the SDK only requests are used. Its ``Task.verify_detailed``, ``load_tasks`` and ``load_task_from_json`` run the code
of verifiers in this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import Any

import httpx
from fleet import Fleet, SyncEnv
from fleet.exceptions import FleetAPIError, FleetError, FleetRateLimitError, FleetTimeoutError

from .errors import FleetFailure, PlatformFailed
from .options import CREATE_TIMEOUT_S, HTTP_TIMEOUT_S, InstanceSpec
from .retries import OF_CREATES, Retries
from .threads import started

logger = logging.getLogger("mcpenv_fleet")

API_KEY = "FLEET_API_KEY"
"""The environment variable with the API key."""

OF_SDK = (FleetError, httpx.HTTPError, ValueError, TypeError)
"""The exceptions that the SDK raises: its own, HTTP errors, and validation errors of answers."""


class Platform:
    """A connection to the platform. All coroutines run on one loop, and the SDK's requests in threads.

    Args:
        api_key: the API key; None: from the environment variable ``FLEET_API_KEY``.
        base_url: the address of the API; None: from ``FLEET_BASE_URL``, or else the SDK's default.
        http_timeout_s: seconds of a request.
        create_timeout_s: seconds to make an instance.
        of_creates: the tries to make one.

    Raises:
        FleetFailure: there is no API key.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        http_timeout_s: float = HTTP_TIMEOUT_S,
        create_timeout_s: float = CREATE_TIMEOUT_S,
        of_creates: Retries = OF_CREATES,
    ) -> None:
        key = api_key or os.environ.get(API_KEY)
        if not key:
            raise FleetFailure(f"there is no API key of Fleet: set {API_KEY}, or pass api_key=")
        self.api_key = key
        self.http_timeout_s = http_timeout_s
        self._create_timeout_s = create_timeout_s
        self._of_creates = of_creates
        # A plain client: the SDK's own client retries requests, POSTs included, in addition to the retries here.
        self._http = httpx.Client(timeout=http_timeout_s)
        self._fleet = Fleet(key, base_url, httpx_client=self._http, max_retries=0, timeout=http_timeout_s)
        self._closing: set[asyncio.Task[None]] = set()

    async def make(self, spec: InstanceSpec) -> SyncEnv:
        """Create an instance, with three tries; only transient failures are retried.

        An instance left behind by a failed try is closed, even if the caller is cancelled.

        Raises:
            PlatformFailed: the platform refused, or no try succeeded.
        """
        run_id = f"{spec.run_id or 'mcpenv'}-{secrets.token_hex(6)}"
        failures: list[Exception] = []

        async def create() -> SyncEnv:
            creating = started(partial(self._create, spec, run_id))
            try:
                return await asyncio.shield(creating)
            except PlatformFailed as error:
                failures.append(error)
                await self.close_run(run_id)
                raise
            except asyncio.CancelledError:
                self._later(self._discard(creating, run_id))
                raise

        env = await self._of_creates.run(f"make {spec.env_key}", create, _is_transient)
        if failures:
            await self.close_run(run_id, kept=env.instance_id)
        return env

    async def close_run(self, run_id: str, kept: str | None = None) -> None:
        """Close the instances of a run id, except one. Failures are logged."""
        try:
            found = await started(partial(self._fleet.instances, run_id=run_id))
        except OF_SDK as error:
            logger.warning("the instances of run %s cannot be listed, and may go on: %s", run_id, error)
            return
        for env in found:
            if env.instance_id != kept and env.status != "stopped":
                logger.warning("instance %s was left behind by a failed create; it is closed", env.instance_id)
                await self.close_instance(env)

    async def close_instance(self, env: SyncEnv) -> None:
        """Close an instance. Failures are logged."""
        try:
            await started(env.close)
        except OF_SDK as error:
            logger.warning("instance %s is not closed, and may go on: %s", env.instance_id, error)

    async def reset(self, env: SyncEnv, seed: int | None) -> None:
        """Reset the data of an instance.

        Raises:
            PlatformFailed: the platform refused. The status is 404 if the instance no longer exists.
        """
        what = f"the reset of instance {env.instance_id}"
        try:
            body = {"seed": seed, "timestamp": None}
            response = await started(partial(env.instance.client.request, "POST", "/reset", json=body))
        except OF_SDK as error:
            raise failed(what, error) from error
        if response.status_code >= 400:
            transient = response.status_code == 429 or response.status_code >= 500
            raise PlatformFailed(what, response.text[:500] or "no text", response.status_code, transient)
        try:
            answer = response.json()
        except ValueError as error:
            raise PlatformFailed(what, "the answer is not JSON") from error
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise PlatformFailed(what, str(answer.get("message") if isinstance(answer, dict) else answer)[:500])

    async def verifier_code(self, verifier_id: str) -> str:
        """Return the source of a verifier that the platform keeps.

        Raises:
            PlatformFailed: the platform has no such verifier.
        """
        what = f"the download of verifier {verifier_id}"
        try:
            response = await started(partial(self._fleet.client.request, "GET", f"/v1/verifiers/{verifier_id}"))
            return str(response.json()["code"])
        except (*OF_SDK, KeyError) as error:
            raise failed(what, error) from error

    async def close(self) -> None:
        """Wait until leaked instances are closed, and close the connection."""
        await asyncio.gather(*self._closing)
        self._http.close()

    def _create(self, spec: InstanceSpec, run_id: str) -> SyncEnv:
        try:
            env = self._fleet.make(
                spec.env_key,
                data_key=spec.data_key,
                region=spec.region,
                env_variables=spec.env_variables or None,
                image_type=spec.image_type,
                ttl_seconds=spec.ttl_seconds,
                run_id=run_id,
                heartbeat_interval=spec.heartbeat_interval,
                timeout=self._create_timeout_s,
            )
        except OF_SDK as error:
            raise failed(f"make {spec.env_key}", error) from error
        if env.urls is None:
            raise PlatformFailed(f"make {spec.env_key}", f"instance {env.instance_id} has no addresses")
        return env

    async def _discard(self, creating: asyncio.Future[SyncEnv], run_id: str) -> None:
        """Close an instance from a create that no caller awaits: now, and once the platform has answered."""
        await self.close_run(run_id)
        await asyncio.wait({creating})
        if creating.exception() is not None:
            logger.debug("a create that was given up has failed", exc_info=creating.exception())
        await self.close_run(run_id)

    def _later(self, cleaning: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(cleaning)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def failed(what: str, error: Exception) -> PlatformFailed:
    """Return the failure for an exception of the SDK. Its type and status decide if it is transient, never its text."""
    status = error.status_code if isinstance(error, FleetAPIError) else None
    transient = isinstance(error, FleetTimeoutError | FleetRateLimitError | httpx.TransportError) or (
        isinstance(error, FleetAPIError) and (status is None or status >= 500)
    )
    text = str(error)
    return PlatformFailed(what, f"{type(error).__name__}: {text}" if text else type(error).__name__, status, transient)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, PlatformFailed) and error.transient


__all__ = ["API_KEY", "OF_SDK", "Platform", "failed"]
