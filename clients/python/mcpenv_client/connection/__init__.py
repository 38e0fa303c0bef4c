"""The connection of a client: addresses, handshake, frames, resuming, and requests over HTTP."""
