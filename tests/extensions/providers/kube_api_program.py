"""A stand-in for the API server of a cluster, by kmock, in a virtual environment of its own: it prints its address.

It keeps objects, and neither runs nor checks them: `cluster.py` has the rest of a cluster, as far as tests need it.
Beside what kmock does, it answers whether an account may create pods (not in the namespace ``forbidden``), refuses
pods in the namespace ``full``, gives each pod a log of one line, and ends each watch with the state of its objects,
after which clients ask again: kmock's own watches lose what changes while they begin, and hold up all requests when a
client leaves one.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from kmock import KubernetesEmulator, Response, Server, action

RESOURCES = {
    "v1/pods": "Pod",
    "v1/secrets": "Secret",
    "extensions.agents.x-k8s.io/v1beta1/sandboxclaims": "SandboxClaim",
    "extensions.agents.x-k8s.io/v1beta1/sandboxwarmpools": "SandboxWarmPool",
    "agents.x-k8s.io/v1beta1/sandboxes": "Sandbox",
}
WATCH_S = 0.05
REVIEWS = "authorization.k8s.io/v1/selfsubjectaccessreviews"


async def main() -> None:
    async with KubernetesEmulator() as api, Server(api, host="127.0.0.1", port=0):
        for name, kind in RESOURCES.items():
            api.resources[name] = {"kind": kind, "namespaced": True}

        def review(request: Any) -> dict[str, Any]:
            spec = request.data["spec"]
            del api.objects[REVIEWS, None, None]  # kmock keeps what is posted, and would refuse the next one
            return {"spec": spec, "status": {"allowed": spec["resourceAttributes"]["namespace"] != "forbidden"}}

        api[f"post /apis/{REVIEWS}"] << review
        api[re.compile(r"/api/v1/namespaces/[^/]+/pods/[^/]+/log")] << b"the last line of the log\n"

        async def watched(request: Any) -> bytes:
            await asyncio.sleep(WATCH_S)
            name = request.params["fieldSelector"].removeprefix("metadata.name=")
            found = [
                each for (resource, _, own), each in api.objects.items() if (resource, own) == (request.resource, name)
            ]
            events = [{"type": "ADDED", "object": each.raw} for each in found if not each.deleted]
            return "".join(f"{json.dumps(event)}\n" for event in events).encode()

        api[action.WATCH] << watched
        api["post /api/v1/namespaces/full/pods"] << Response(
            status=403, reason="Forbidden", payload={"kind": "Status", "message": "exceeded quota: pods"}
        )
        print(api.url, flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
