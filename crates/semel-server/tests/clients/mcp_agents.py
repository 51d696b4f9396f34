"""Agents that are built with `mcp` and know nothing of keys, and the client of the same package. As mcp_agents.mjs.

    mcp_agents.py
"""

import asyncio
import json
import logging
import sys
from typing import Any

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer

logging.disable(logging.CRITICAL)
effects = 0


async def act() -> dict[str, Any]:
    global effects
    effects += 1
    effect = effects
    await asyncio.sleep(0.02)
    return {"effect": effect}


def agent() -> MCPServer:
    server = MCPServer("agent")

    @server.tool()
    async def requires_key(idempotency_key: str, n: int = 0) -> dict[str, Any]:
        return await act()

    @server.tool()
    async def names_no_key(n: int = 0) -> dict[str, Any]:
        return await act()

    @server.tool()
    async def names_nothing() -> dict[str, Any]:
        return await act()

    # The package puts what is no object into one: {"result": …}.
    @server.tool()
    async def writes_text(n: int = 0) -> str:
        return json.dumps(await act())

    # Without a type, the result is only in the text.
    @server.tool()
    async def declares_nothing(n: int = 0):
        return await act()

    @server.tool()
    async def get_adcp_capabilities() -> dict[str, Any]:
        return {"adcp": {"major_versions": [3]}}

    return server


async def listen(is_json: bool, has_sessions: bool) -> str:
    app = agent().streamable_http_app(json_response=is_json, stateless_http=not has_sessions)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", timeout_keep_alive=60))
    running = asyncio.create_task(server.serve())
    while not server.started:
        assert not running.done(), "the server listens"
        await asyncio.sleep(0.01)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


async def call(url: str, tool: str, arguments: dict[str, Any], mode: str) -> Any:
    headers = {"authorization": "Bearer alice"}
    try:
        async with httpx2.AsyncClient(headers=headers, timeout=60, verify=False) as http:
            async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                await client.list_tools()
                result = await client.call_tool(tool, arguments)
                if result.structured_content is not None:
                    return result.structured_content
                return json.loads(result.content[0].text)
    except Exception as error:
        return {"error": repr(error)}


async def answer(asked: dict[str, Any]) -> Any:
    if asked.get("count"):
        return {"effects": effects}
    one = lambda: call(asked["url"], asked["tool"], asked["arguments"], asked.get("mode", "auto"))
    return {"answers": await asyncio.gather(*(one() for _ in range(asked["times"])))}


async def main() -> None:
    agents = {
        "json": await listen(True, False),
        "events": await listen(False, False),
        "json_session": await listen(True, True),
        "events_session": await listen(False, True),
    }
    print(json.dumps(agents), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await answer(json.loads(line))), flush=True)


asyncio.run(main())
