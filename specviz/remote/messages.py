"""The messages of one request as they arrive, each with its time, read in a thread of their own.

A thread, so that a slow page cannot hold the server's messages back and merge steps, and so that whoever waits for the
first token can still be stopped. In it runs asyncio, because there a request in flight can be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from typing import Any

import httpx
import httpx_sse

from specviz.remote.address import Address
from specviz.remote.chunks import StreamChunk, read_chunk
from specviz.remote.problems import problem_of, refusal

__all__ = ["Messages", "headers"]

CONNECT_S = 5.0


def headers(address: Address) -> dict[str, str]:
    """What every request to this server carries."""
    return {"Authorization": f"Bearer {address.key}"} if address.key else {}


class Messages:
    """Sends the request at once. `get` takes what has come; `close` hangs up, which ends the request on the server."""

    def __init__(self, address: Address, path: str, body: dict[str, Any]) -> None:
        self._address, self._path, self._body = address, path, body
        self._items: queue.SimpleQueue[StreamChunk | Exception | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specviz-attach", daemon=True)
        self._thread.start()

    def get(self, wait_s: float) -> StreamChunk | None:
        """The next message, None at the end of the stream.

        Raises:
            queue.Empty: nothing came within `wait_s`.
            RemoteError: the server refused, broke off, or sent something else.
        """
        item = self._items.get(timeout=wait_s)
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # the thread has ended meanwhile, and its loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        try:
            self._task = self._loop.create_task(self._read())
            if self._closed.is_set():
                self._task.cancel()
            self._loop.run_until_complete(self._task)
            self._items.put(None)
        except asyncio.CancelledError:
            self._items.put(None)
        except Exception as error:
            self._items.put(problem_of(error, self._address))
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _read(self) -> None:
        timeout = httpx.Timeout(None, connect=CONNECT_S)  # how long silence may last is for the reader of `get` to say
        async with httpx.AsyncClient(
            base_url=self._address.url, headers=headers(self._address), timeout=timeout
        ) as client:
            await client.get("/v1/models")  # connects, so that the time to the first token is the server's alone
            began = time.perf_counter()
            async with httpx_sse.aconnect_sse(client, "POST", self._path, json=self._body) as source:
                if source.response.status_code != 200:
                    await source.response.aread()
                    raise refusal(source.response.status_code, source.response.text, self._address)
                async for event in source.aiter_sse():
                    if not event.data:
                        continue
                    chunk = read_chunk(event.data, time.perf_counter() - began)
                    if chunk is None:
                        return
                    self._items.put(chunk)
