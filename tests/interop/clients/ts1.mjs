// The TypeScript SDK, first generation.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { play, said, where } from "./scenario.mjs";

const at = where();
const transport = at.url
  ? new StreamableHTTPClientTransport(new URL(at.url))
  : new StdioClientTransport(at);
const client = new Client({ name: "interop", version: "1" });
await client.connect(transport);
const { tools } = await client.listTools();
await play(tools, async (name, args) => said(await client.callTool({ name, arguments: args })));
await client.close();
