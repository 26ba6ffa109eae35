// /try, live: the answer as it comes, and a button that stops it. Without this
// script the form brings the answer whole.
"use strict";

(() => {
  const form = document.getElementById("try");
  if (!form || !window.ReadableStream) return;
  const said = document.getElementById("said");
  const refused = document.getElementById("refused");
  const state = document.getElementById("state");
  const send = document.getElementById("send");
  const stop = document.getElementById("stop");
  let running = null;

  // One message in the page; all that is set is text.
  function show(role, text) {
    const article = document.createElement("article");
    article.className = "said " + role;
    const who = document.createElement("strong");
    who.textContent = role === "user" ? "Me" : "Model";
    const body = document.createElement("p");
    body.className = "text";
    body.textContent = text;
    article.append(who, body);
    said.append(article);
    return { article, body };
  }

  // The conversation is what the form brings with the next question.
  function remember(text) {
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = "said";
    field.value = text;
    form.prepend(field);
    const before = form.querySelectorAll("input[name=said]");
    before[before.length - 1].after(field);
  }

  function refuse(error, id) {
    const notice = document.createElement("div");
    notice.className = "notice problem";
    const text = document.createElement("p");
    const code = document.createElement("code");
    code.textContent = error.code || "error";
    text.append("No answer (", code, "): " + (error.message || "the call was not answered; try again shortly") + ". ");
    if (id) {
      const link = document.createElement("a");
      link.href = "/requests/" + encodeURIComponent(id);
      link.textContent = id;
      text.append("Why: ", link);
    }
    notice.append(text);
    refused.replaceChildren(notice);
  }

  // Each event of the answer; what is no event, as a heartbeat, is passed over.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const lines = text.split(/\r?\n/);
      text = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  }

  async function answer(response, into) {
    let text = "";
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw event.error;
      const delta = event.choices?.[0]?.delta ?? {};
      if (delta.content) {
        text += delta.content;
        into.textContent = text;
        state.textContent = "Answering…";
      } else if (delta.reasoning_content && !text) {
        state.textContent = "Thinking…";
      }
    }
    return text;
  }

  async function ask() {
    const fields = new URLSearchParams(new FormData(form));
    const question = form.elements.ask.value;
    refused.replaceChildren();
    const mine = show("user", question);
    const theirs = show("assistant", "");
    said.setAttribute("aria-busy", "true");
    state.textContent = "Waiting for a machine…";
    send.disabled = true;
    stop.hidden = false;
    running = new AbortController();
    let id = "";
    let kept = false;
    try {
      const response = await fetch(form.dataset.stream, { method: "POST", body: fields, signal: running.signal });
      id = response.headers.get("X-Correlation-Id") || "";
      const kind = response.headers.get("Content-Type") || "";
      if (!response.ok || !kind.startsWith("text/event-stream")) {
        let told = {};
        try { told = (await response.json()).error ?? {}; } catch {
          told = response.redirected ? { code: "signed_out", message: "you are not signed in any more: load this page again" } : { code: String(response.status) };
        }
        throw told;
      }
      await answer(response, theirs.body);
      kept = true;
      state.textContent = "";
    } catch (error) {
      if (error.name === "AbortError") {
        kept = theirs.body.textContent !== "";
        state.textContent = "Stopped.";
      } else {
        refuse(error instanceof Error ? { code: "connection", message: "the connection ended before the answer did" } : error, id);
        state.textContent = "";
      }
    } finally {
      if (kept) {
        remember(question);
        remember(theirs.body.textContent);
        form.elements.ask.value = "";
      } else {
        mine.article.remove();
        theirs.article.remove();
      }
      said.removeAttribute("aria-busy");
      send.disabled = false;
      stop.hidden = true;
      running = null;
      form.elements.ask.focus();
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) ask();
  });
  stop.addEventListener("click", () => running?.abort());
  form.elements.ask.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
})();
