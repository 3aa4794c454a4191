// What every client does; the same as scenario.py.

const EXPORT = { provider: "exp", job: "export" };
const OVER = ["succeeded", "failed", "cancelled", "expired", "discarded", "escalated"];

export const where = () => JSON.parse(process.env.INTEROP_SERVER);

export function said(answer) {
  const told = JSON.parse(answer.content.map((block) => block.text).join(""));
  const same = JSON.stringify(answer.structuredContent) === JSON.stringify(told);
  if (answer.structuredContent && !same) throw new Error("text and structured content differ");
  return told;
}

async function over(call, said) {
  for (let count = 0; count < 20; count++) {
    if (OVER.includes(said.state)) return said;
    said = await call("check_status", { operation_id: said.operation_id });
  }
  throw new Error(`it did not end: ${JSON.stringify(said)}`);
}

export async function play(tools, call) {
  const submit = (dataset) => call("submit_job", { ...EXPORT, arguments: { dataset } });
  const actions = await call("list_actions", { provider: "exp" });
  const job = await over(call, await submit("sales"));
  const fetched = await call("fetch_result", { operation_id: job.operation_id });
  const again = await submit("sales");
  const stuck = await over(call, await submit("odd"));
  const unknown = await call("check_status", { operation_id: "op_nothing" });
  console.log(
    JSON.stringify({
      tools: tools.length,
      actions: actions.actions.map((one) => one.name).sort(),
      job: job.state,
      may_proceed: job.may_proceed,
      result: fetched.result.inline,
      again: again.error.code,
      known: again.operation_id === job.operation_id,
      stuck: stuck.state,
      reason: stuck.escalation.reason,
      unknown: unknown.error.code,
    }),
  );
}
