"""The agent's side: use cases, answers and the names an MCP client sees. No SQL, no HTTP."""
