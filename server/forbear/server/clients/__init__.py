"""The MCP clients of this machine: where each keeps its servers, and our entry in there."""
