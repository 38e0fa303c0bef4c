"""The server: every plane of an environment over HTTP, WebSocket and stdio."""
