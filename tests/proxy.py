"""A reverse proxy that serves another server under a folder of its own, as a company's web server does."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

__all__ = ["proxied"]

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-encoding", "content-length"}


@contextmanager
def proxied(upstream: str, folder: str) -> Iterator[str]:
    """The address of `folder` on a new port; what is asked of it goes on to `upstream` without the folder."""
    client = httpx.AsyncClient(base_url=upstream, timeout=60)

    async def forward(request: Request) -> Response:
        headers = {k: v for k, v in request.headers.items() if k != "host"}
        headers |= {"x-forwarded-host": request.headers["host"], "accept-encoding": "identity"}
        path = f"/{request.path_params['rest']}"
        outgoing = client.build_request(
            request.method, path, params=request.query_params, headers=headers, content=await request.body()
        )
        answer = await client.send(outgoing, stream=True)

        async def body() -> AsyncIterator[bytes]:
            async for chunk in answer.aiter_raw():
                yield chunk
            await answer.aclose()

        kept = {k: v for k, v in answer.headers.items() if k not in _HOP_BY_HOP}
        return StreamingResponse(body(), answer.status_code, kept)

    methods = ["GET", "POST", "HEAD", "DELETE"]
    app = Starlette(routes=[Route(folder + "/{rest:path}", forward, methods=methods)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}{folder}"
    finally:
        server.should_exit = True
        thread.join(10)
