"""A gateway of aiohttp, both ends: `with_aiohttp.py PORT UPSTREAM [handler-cancellation]`."""

from __future__ import annotations

import sys

from aiohttp import ClientSession, ClientTimeout, web

port, upstream, settings = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


async def streams(request: web.Request) -> web.StreamResponse:
    """Hands the answer on as it comes."""
    async with (
        ClientSession(timeout=ClientTimeout(total=None)) as session,
        session.request(
            request.method, upstream + request.path, data=await request.read(),
            headers={"Content-Type": "application/json"},
        ) as answer,
    ):  # fmt: skip
        kind = {"Content-Type": answer.headers["Content-Type"]}
        response = web.StreamResponse(status=answer.status, headers=kind)
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        return response


if __name__ == "__main__":
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", streams)
    # Since aiohttp 3.7 a handler is no longer cancelled when its client goes, unless it is asked for.
    web.run_app(app, host="127.0.0.1", port=port, print=None, handler_cancellation=bool(settings))
