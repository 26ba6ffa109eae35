// The worker of the chat. It makes the calls and reads their answers, so that the page has
// one task for each update, however many chunks an answer has.
//
// A message of the page is a call, {url, body}, with a port. The port gets {id, route} of the
// response, then {lines} of the stream, and at the end {lines, error, ended}. After lines the
// page sends how many milliseconds the worker delays the next ones; "stop" ends the call.
"use strict";

addEventListener("message", async ({ data: { url, body }, ports: [port] }) => {
  const stop = new AbortController();
  let lines = [], error, ready = true;
  const send = () => {
    if (!ready || lines.length === 0) return;
    port.postMessage({ lines });
    lines = [];
    ready = false;
  };
  port.onmessage = ({ data }) => {
    if (data === "stop") stop.abort();
    else setTimeout(() => { ready = true; send(); }, data);
  };
  try {
    const response = await fetch(url, { method: "POST", signal: stop.signal, headers: { "Content-Type": "application/json" }, body });
    port.postMessage({ id: response.headers.get("X-Correlation-Id") ?? "", route: response.headers.get("X-Kith-Route") ?? "" });
    if (!response.ok || !response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw await refusal(response);
    const pieces = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
      const read = (rest + piece.value).split(/\r?\n/);
      rest = read.pop();
      lines.push(...read.filter((line) => line !== ""));
      send();
    }
  } catch (thrown) {
    error = thrown instanceof Error ? { code: "connection", message: "the connection ended before the answer did" } : thrown;
  }
  port.postMessage({ lines, error, ended: true });
});

// The hub's error for a call that it refuses.
async function refusal(response) {
  const status = { code: String(response.status) };
  try {
    return (await response.json()).error ?? status;
  } catch {
    return response.redirected ? { code: "signed_out", message: "you are not signed in any more: load this page again" } : status;
  }
}
