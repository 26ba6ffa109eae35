// The calls of the chat, which its worker makes, and what the hub's headers and comments say of
// them.
"use strict";

// Returns call, which makes a call, and leave, which ends the worker with the page. failed is
// called when the worker fails.
const chatCalls = (url, script, failed) => {
  let worker = start();

  function start() {
    const started = new Worker(script);
    started.addEventListener("error", () => {
      worker = null; // the next call starts one
      failed();
    });
    return started;
  }

  return {
    // take gets what the worker sends of the call, and returns how many milliseconds the worker
    // holds back what comes next.
    call(body, signal, take) {
      const { port1: port, port2: far } = new MessageChannel();
      return new Promise((resolve, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
        port.onmessage = ({ data }) => {
          try {
            const hold = take(data);
            if (data.ended) resolve();
            else if (data.lines) port.postMessage(hold);
          } catch (error) { reject(error); }
        };
        worker ??= start();
        worker.postMessage({ url, body: JSON.stringify(body) }, [far]);
      }).finally(() => {
        port.postMessage("stop");
        port.close();
      });
    },
    leave() {
      worker?.terminate();
      worker = null;
    },
  };
};

// Returns the machine that answered, which is the last one of the route.
function machineOf(route) {
  const names = [...(route ?? "").matchAll(/machine=(?:"((?:[^"\\]|\\.)*)"|([^;,]*))/g)];
  const last = names.at(-1);
  const escapes = /\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|x([0-9a-f]{2})|(.))/g;
  return last ? (last[1]?.replace(escapes, (_, u, U, x, plain) => plain ?? String.fromCodePoint(parseInt(u ?? U ?? x, 16))) ?? last[2]) : "";
}

// Returns a sentence about the place in line that a comment of the hub names, or "".
function waiting(comment) {
  const place = /^waiting (\d+) ahead, (\d+) s left$/.exec(comment);
  if (!place) return "";
  const ahead = Number(place[1]);
  return "In line for a machine: " + (ahead === 0 ? "next" : ahead + (ahead === 1 ? " call" : " calls") + " ahead") + ", at most " + place[2] + " s more.";
}
