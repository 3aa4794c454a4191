// The TypeScript SDK, second generation, in the newest era that both sides know.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { play, said, where } from "./scenario.mjs";

const at = where();
const transport = at.url
  ? new StreamableHTTPClientTransport(new URL(at.url))
  : new StdioClientTransport(at);
const options = { versionNegotiation: { mode: process.env.INTEROP_ERA } };
const client = new Client({ name: "interop", version: "1" }, options);
await client.connect(transport);
const { tools } = await client.listTools();
await play(tools, async (name, args) => said(await client.callTool({ name, arguments: args })));
await client.close();
