"""A Ray Serve deployment of `lucebox-serve`: replicas, session affinity, health and autoscaling are Ray's.

``pip install 'pylucebox[ray]'``, then ``serve.run(build_app({"flags": ["-m", "MODEL.gguf"], "num_replicas": 2}))``, or
in a configuration file ``import_path: pylucebox.integrations.ray:build_app``. See docs/scaling.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from pylucebox._errors import InvalidArgumentError
from pylucebox.integrations._replica import Head, ServeProcess, passed_on

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["LuceboxReplica", "build_app"]

SESSION_ROUTER: Final = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
"""Sends requests with the same ``x-session-id`` to the same replica, where the prompt's beginning is in the cache."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "max_ongoing_requests": 8,  # twice the slots that llama-server has by default
    "health_check_period_s": 10,
    "health_check_timeout_s": 30,
    "graceful_shutdown_timeout_s": 40,  # more than --drain-timeout
    "request_router_config": {"request_router_class": SESSION_ROUTER},
}


class LuceboxReplica:
    """One `lucebox-serve`, and what Ray asks of a replica.

    Parameters
    ----------
    flags
        Command line of `lucebox-serve`, without ``--host`` and ``--port``.
    """

    def __init__(self, flags: list[str]) -> None:
        self._server = ServeProcess(flags)
        self._is_ready = False

    async def check_health(self) -> None:
        """Wait for the model at first; raise later when the server is not there.

        A worker that died is started again by `lucebox-serve` itself, within the time that Ray gives to three checks.

        Raises
        ------
        ServeStartError
            The server ended before it was ready.
        RuntimeError
            It does not answer.
        """
        if not self._is_ready:
            await self._server.wait_ready()
            self._is_ready = True
        elif not await self._server.is_healthy():
            raise RuntimeError("lucebox-serve does not answer")

    async def __call__(self, request: Request) -> Response:
        """Pass a request on, and the reply back as it comes."""
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
        parts = self._server.ask(request.method, path + query, passed_on(request.headers.items()), await request.body())
        try:
            head = await anext(parts)
        except OSError as error:  # what aiohttp raises when nobody listens
            message = {"message": str(error), "type": "unavailable_error", "code": 503}
            return JSONResponse({"error": message}, 503, {"Retry-After": "3"})
        assert isinstance(head, Head)
        return StreamingResponse(_pieces(parts), head.status, dict(head.headers))

    async def __del__(self) -> None:
        """Let running requests finish and end; Ray awaits it."""
        await self._server.close()


async def _pieces(parts: AsyncIterator[Head | bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        assert isinstance(part, bytes)
        yield part


def build_app(arguments: Mapping[str, Any]) -> Application:
    """Return an application of `LuceboxReplica`, for `ray.serve.run` or a configuration file.

    Parameters
    ----------
    arguments
        ``flags``: command line of `lucebox-serve` (a list of texts). All other names are options of
        `ray.serve.deployment`, for example ``num_replicas``, ``autoscaling_config``, ``ray_actor_options``.

    Raises
    ------
    InvalidArgumentError
        There are no flags, or they say where to listen.
    """
    options = {**_DEFAULTS, **arguments}
    flags = options.pop("flags", None)
    if not isinstance(flags, list) or not flags or not all(isinstance(flag, str) for flag in flags):
        raise InvalidArgumentError(
            argument="flags", value=flags, allowed='a command line as a list, for example ["-m", "MODEL.gguf"]'
        )
    for flag in flags:
        if flag.partition("=")[0] in ("--host", "--port"):
            raise InvalidArgumentError(
                argument="flags", value=flag, reason="a replica listens on a socket of its own", advice="Leave it out."
            )
    if isinstance(options["request_router_config"], Mapping):
        options["request_router_config"] = RequestRouterConfig(**options["request_router_config"])
    if "autoscaling_config" in options:
        options.pop("num_replicas", None)
    application: Application = serve.deployment(LuceboxReplica).options(**options).bind(flags)
    return application
