"""What answers over HTTP: MCP at `/mcp`, and the web console beside it.

Each request passes the gate (name, origin, size), then either the bearer check of `/mcp` or the
sign-in of the console.
"""
