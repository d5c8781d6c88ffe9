"""The adapter of parley_client for `server conformance`: lines of JSON on standard input and output.

The stubs are searched in PARLEY_STUBS, or in the folder stubs beside this file.
"""

import asyncio
import json
import os
import sys
import threading

sys.path.insert(0, os.environ.get("PARLEY_STUBS") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "stubs"))
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from parley_client import Client  # noqa: E402


def say(line):
    """Writes one line."""
    sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def quit_now(client):
    """Stores what there is, and ends the process."""
    if client:
        client.commit()
    sys.stdout.flush()
    os._exit(0)


class Adapter:
    """Hands commands to the client."""

    def __init__(self):
        self.client = self.task = None

    def take(self, line):
        """Does what one line says; None is the end of the input."""
        if line is None:
            quit_now(self.client)
        command = json.loads(line)
        do, c = command.get("do"), self.client
        chat = command.get("chat", "")
        if do == "start" and not c:
            self.client = Client(command["url"], command["user"], command.get("token", ""), command["directory"],
                                 command.get("wall", 0), lambda: say({"want": "token"}),
                                 lambda text: say({"sent": text}))
            self.task = asyncio.ensure_future(self.client.run())
            self.task.add_done_callback(self.ended)
        elif do == "stop":
            quit_now(c)
        elif not c:
            return
        elif do == "open":
            c.open(chat)
        elif do == "send":
            c.send(chat, command.get("text", ""))
        elif do == "read":
            c.mark_read(chat, command.get("sequence", 0))
        elif do == "show":
            say({"shown": c.show()})
        elif do == "token":
            c.set_token(command.get("token", ""))
        elif do == "older":
            c.older(chat)
        elif do == "clock":
            c.wall_ms = command.get("wall", 0)

    @staticmethod
    def ended(task):
        """The client's loop ends only when it is told to stop; anything else is a bug to be seen."""
        if not task.cancelled() and task.exception():
            import traceback
            traceback.print_exception(task.exception())
            os._exit(3)


def read_lines(loop, adapter):
    """Reads standard input in a thread."""
    for line in sys.stdin.buffer:
        if line.strip():
            loop.call_soon_threadsafe(adapter.take, line)
    loop.call_soon_threadsafe(adapter.take, None)


async def main():
    """Runs until standard input ends."""
    say({"can": ["keep", "older", "clock"]})
    threading.Thread(target=read_lines, args=(asyncio.get_running_loop(), Adapter()), daemon=True).start()
    await asyncio.Event().wait()


asyncio.run(main())
