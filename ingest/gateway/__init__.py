"""The gateway process: asyncio around the protocol, the sessions and the log."""
