"""The socket that the server listens on."""

from __future__ import annotations

import asyncio
import socket

from headrace.api.http.server import ServerSettings, listen


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Nagle's algorithm is off on accepted connections, on asyncio's own loop too."""

    async def accepted_option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = listen(ServerSettings(port=0))
        async with await asyncio.start_server(look, sock=bound):
            _, client = await asyncio.open_connection(*bound.getsockname())
            option = await asyncio.wait_for(found, 30)
            client.close()
            return option

    assert asyncio.run(accepted_option()) != 0
