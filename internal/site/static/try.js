// The chat: it streams answers, stores conversations in this browser, each with its own
// address, and compares two models. Without this script the form returns each answer complete.
"use strict";

(() => {
  const form = document.getElementById("try");
  if (!form || !window.ReadableStream) return;
  const at = (id) => document.getElementById(id);
  const said = at("said"), refused = at("refused"), state = at("state"), send = at("send"), stop = at("stop"), ask = at("ask");
  const model = at("model"), compare = at("compare"), images = at("images"), file = at("image"), attach = at("attach");
  const chats = chatHistory(form.dataset.member);
  const titles = JSON.parse(form.dataset.titles);
  const most = 4; // images in one message

  // A chat is {id, at, title, named, pinned, turns}, and a turn {ask, images, answers}. When two models are
  // compared, each continues from its own answers. An answer is open until it has ended: what
  // is stored of one whose page was left stays so.
  let chat = fresh();
  let pending = []; // images of the message that is being written
  let editing = -1; // index of the turn that is being edited
  let running = null;
  let following = true;
  let saved = 0; // when the chat was stored last, on the clock of performance.now

  // Its id is made without randomUUID, which a hub at a plain HTTP address does not have.
  function fresh() {
    const id = Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    return { id, at: Date.now(), title: "", turns: [] };
  }

  function button(text, label, act) {
    const made = element("button", "small plain", text);
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  // The page scrolls with the answer while its end is visible.
  addEventListener("scroll", () => {
    following = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  }, { passive: true });
  const follow = () => { if (following) scrollTo(0, document.documentElement.scrollHeight); };

  // Returns what the models get: all turns before one, and its question.
  function messages(column, upTo) {
    const all = [];
    for (const [i, turn] of chat.turns.slice(0, upTo + 1).entries()) {
      const pictures = (turn.images ?? []).map((url) => ({ type: "image_url", image_url: { url } }));
      all.push({ role: "user", content: pictures.length ? [{ type: "text", text: turn.ask }, ...pictures] : turn.ask });
      const answer = turn.answers[column] ?? turn.answers[0];
      if (i < upTo && answer?.text) all.push({ role: "assistant", content: answer.text });
    }
    return all;
  }

  const models = () => (compare.value && compare.value !== model.value ? [model.value, compare.value] : [model.value]);
  const unanswered = () => models().map((name) => ({ model: name, text: "" }));

  function showTurn(i) {
    const turn = chat.turns[i];
    const mine = element("article", "said user", element("header", "", element("strong", "", "You")), element("div", "text", turn.ask));
    if (turn.images?.length) {
      const pictures = element("div", "images");
      for (const url of turn.images) {
        const picture = element("img");
        picture.src = url;
        picture.alt = "Your image";
        pictures.append(picture);
      }
      mine.append(pictures);
    }
    mine.append(element("div", "tools", button("Edit", "Edit this message", () => edit(i))));
    const place = element("div", turn.answers.length > 1 ? "turn two" : "turn", mine);
    for (const answer of turn.answers) place.append(showAnswer(answer));
    if (said.children[i]) said.children[i].replaceWith(place);
    else said.append(place);
    return place;
  }

  // Creates the elements for an answer: its thinking, its text and its details.
  function showAnswer(answer) {
    const article = element("article", "said assistant", element("header", "", element("strong", "", answer.model)));
    const thinking = element("details", "thinking", element("summary", "", "Thinking"), element("div"));
    const text = element("div", "text");
    const meta = element("p", "meta muted");
    thinking.hidden = true;
    article.append(thinking, text, meta);
    article.parts = { thinking, text, meta };
    if (answer.thinking) showThinking(article, answer.thinking, answer.thought);
    if (answer.text) {
      const drawn = new markdown.Answer(text);
      drawn.text = answer.text;
      drawn.end();
    }
    finishAnswer(article, answer);
    return article;
  }

  function showThinking(article, text, took) {
    const { thinking } = article.parts;
    thinking.hidden = false;
    thinking.firstChild.textContent = took ? "Thought for " + seconds(took) : "Thinking…";
    thinking.lastChild.textContent = text;
  }

  function finishAnswer(article, answer) {
    const { meta } = article.parts;
    meta.replaceChildren();
    if (answer.error) meta.append(refusal(answer.error, answer.id, answer.text || answer.thinking ? "The answer broke off" : "No answer"));
    if (answer.stopped) meta.append("You stopped this answer. ");
    if (answer.open) meta.append("This answer is not complete. ");
    if (answer.meta) meta.append(answer.meta);
    article.querySelector(":scope > .tools")?.remove();
    if (!answer.text && !answer.open) return;
    const tools = element("div", "tools");
    if (answer.text && navigator.clipboard) tools.append(markdown.copyButton("the answer", () => answer.text));
    tools.append(button("Regenerate", "Regenerate the answer", () => again(article)));
    article.append(tools);
  }

  const seconds = (ms) => (ms < 100 ? Math.round(ms) + " ms" : (ms < 9950 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)) + " s");

  // Shows why a call was refused or broke off, with a link to its explanation. Errors that are
  // not the hub's have the title unknown.
  function refusal(error, id, unknown) {
    const title = titles[error.code];
    const text = element("span", "", element("strong", "", title ?? unknown));
    if (title) text.append(" ", element("small", "muted", element("code", "", error.code)));
    text.append(": " + (error.message || "the call was not answered; try again shortly") + ". ");
    if (id) {
      const link = element("a", "", "Why?");
      link.href = "/requests/" + encodeURIComponent(id);
      text.append(link);
    }
    return text;
  }

  // Trusted Types: a worker's script can only have the URL that is in the page.
  const script = form.dataset.worker;
  const workerAddress = window.trustedTypes?.createPolicy("chat-worker", { createScriptURL: () => script }).createScriptURL("") ?? script;
  let worker = startWorker();

  function startWorker() {
    const started = new Worker(workerAddress);
    started.addEventListener("error", () => {
      worker = null; // the next call starts one
      running?.abort(new Error("the worker failed"));
    });
    return started;
  }

  // Browsers may cache a page that the user left, with its worker. The call would then
  // continue for up to a minute.
  const left = new Error("the page was left");
  addEventListener("pagehide", () => {
    if (running) chats.put(chat);
    running?.abort(left);
    worker?.terminate();
    worker = null;
  });

  // Ends the answer that is being written. What came of it is stored with its chat.
  function leave() {
    running?.abort(left);
    ended();
  }

  function ended() {
    running = null;
    said.removeAttribute("aria-busy");
    send.hidden = send.disabled = false;
    stop.hidden = true;
  }

  // A call, which the worker makes. take gets what the worker sends of it, and returns how many
  // milliseconds the worker holds back what comes next.
  function call(body, signal, take) {
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
      worker ??= startWorker();
      worker.postMessage({ url: form.dataset.post, body: JSON.stringify(body) }, [far]);
    }).finally(() => {
      port.postMessage("stop");
      port.close();
    });
  }

  // The machine that answered is the last one of the route.
  function machineOf(route) {
    const names = [...(route ?? "").matchAll(/machine=(?:"((?:[^"\\]|\\.)*)"|([^;,]*))/g)];
    const last = names.at(-1);
    const escapes = /\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|x([0-9a-f]{2})|(.))/g;
    return last ? (last[1]?.replace(escapes, (_, u, U, x, plain) => plain ?? String.fromCodePoint(parseInt(u ?? U ?? x, 16))) ?? last[2]) : "";
  }

  function waiting(comment) {
    const place = /^waiting (\d+) ahead, (\d+) s left$/.exec(comment);
    if (!place) return "";
    const ahead = Number(place[1]);
    return "In line for a machine: " + (ahead === 0 ? "next" : ahead + (ahead === 1 ? " call" : " calls") + " ahead") + ", at most " + place[2] + " s more.";
  }

  // One model's answer to a turn, into its place.
  async function answerOf(turn, column, article, signal) {
    const answer = turn.answers[column];
    const begun = performance.now();
    let first = 0, pieces = 0, tokens = 0, machine = "", done = false;
    const drawn = new markdown.Answer(article.parts.text);

    // A line of the stream: an event, or a comment between them.
    function read(line) {
      if (line.startsWith(":")) {
        const comment = line.slice(1).trim();
        machine = machineOf(comment) || machine;
        if (!first) state.textContent = waiting(comment) || state.textContent;
      }
      if (!line.startsWith("data:")) return;
      const data = line.slice(5).trim();
      if (data === "[DONE]") done = true;
      if (done) return;
      const event = JSON.parse(data);
      if (event.error) throw event.error;
      tokens = event.usage?.completion_tokens || tokens;
      const delta = event.choices?.[0]?.delta ?? {};
      const thinks = delta.reasoning_content ?? delta.reasoning;
      if (!delta.content && !thinks) return;
      first ||= performance.now();
      pieces++;
      if (delta.content) {
        if (answer.thinking && !answer.thought) {
          answer.thought = performance.now() - first;
          showThinking(article, answer.thinking, answer.thought);
        }
        if (!answer.text) state.textContent = "Answering…";
        answer.text += delta.content;
        drawn.add(delta.content);
      } else {
        if (!answer.thinking) state.textContent = "Thinking…";
        answer.thinking = (answer.thinking ?? "") + thinks;
      }
    }

    const all = messages(column, chat.turns.indexOf(turn));
    try {
      await call({ model: answer.model, stream: true, stream_options: { include_usage: true }, messages: all }, signal, ({ id, route, lines = [], error }) => {
        const begun = performance.now(), before = pieces;
        answer.id ||= id;
        machine ||= machineOf(route);
        for (const line of lines) read(line);
        if (error) throw error;
        if (pieces === before) return 0;
        if (answer.text) drawn.draw();
        else showThinking(article, answer.thinking);
        follow();
        if (performance.now() - saved > 1000) store();
        return Math.max(200, 60 * (performance.now() - begun)); // painting takes as long again: 3 % of a core in all
      });
      if (!done) throw new Error("the response ended without [DONE]");
    } finally {
      if (answer.text) drawn.end();
      if (answer.thinking) showThinking(article, answer.thinking, answer.thought || performance.now() - first);
      if (first) {
        const took = (performance.now() - first) / 1000;
        const rate = (tokens || pieces) / took;
        answer.meta = answer.model + (machine ? " on " + machine : "") + " · " + seconds(first - begun) + " to first token" +
          (pieces > 1 && took > 0 ? " · " + (rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en-US")) + " tokens/s" : "");
      }
    }
  }

  // The last of the turns is asked: of one model, or of two at once. If nothing comes, the chat
  // is what it was before.
  async function run(turns) {
    const mine = chat, before = chat.turns, i = turns.length - 1, turn = turns[i];
    chat.turns = turns;
    const place = showTurn(i);
    while (said.children.length > i + 1) said.lastChild.remove();
    refused.replaceChildren();
    said.setAttribute("aria-busy", "true");
    state.textContent = "Waiting for a machine…";
    send.hidden = send.disabled = true;
    stop.hidden = false;
    const call = running = new AbortController(), signal = call.signal;
    if (location.pathname !== address(chat)) history.replaceState(null, "", address(chat));
    const articles = place.querySelectorAll(".assistant");
    for (const answer of turn.answers) answer.open = true;
    store().then(list);
    following = true;
    follow();
    await Promise.all(turn.answers.map(async (answer, column) => {
      try {
        await answerOf(turn, column, articles[column], signal);
        answer.open = false;
      } catch (error) {
        answer.open = error === left;
        answer.stopped = error.name === "AbortError";
        if (!answer.open && !answer.stopped) answer.error = error instanceof Error ? { code: "connection", message: "the connection ended before the answer did" } : { code: error.code, message: error.message };
      }
      finishAnswer(articles[column], answer);
    }));
    if (chat !== mine) { // another is shown
      if (!mine.deleted) store(mine).then(list);
      return;
    }
    if (running === call) ended();
    state.textContent = turn.answers.some((answer) => answer.stopped) ? "Stopped." : "";
    if (turn.answers.every((answer) => !answer.text && !answer.thinking && !answer.open)) {
      const failed = turn.answers.find((answer) => answer.error);
      if (failed) refused.replaceChildren(element("div", "notice problem", element("p", "", refusal(failed.error, failed.id, "No answer"))));
      takeBack(before, i, turn);
    }
    if (chat.turns.length === 0) history.replaceState(null, "", "/try");
    (chat.turns.length ? store() : chats.remove(chat.id)).then(list);
    follow();
    showCode();
    write();
  }

  // Shows the turns that were there before one was asked, whose message is in the field again.
  function takeBack(before, i, turn) {
    chat.turns = before;
    said.replaceChildren();
    for (const n of before.keys()) showTurn(n);
    if (before[i]?.ask === turn.ask) return; // it is shown, with its earlier answer
    const typed = ask.value;
    if (before[i]) edit(i);
    ask.value = typed || turn.ask;
    pending = turn.images ?? [];
    showPending();
  }

  function question() {
    if (running || !ask.value.trim()) return;
    const turns = [...(editing >= 0 ? chat.turns.slice(0, editing) : chat.turns), { ask: ask.value, images: pending, answers: unanswered() }];
    editing = -1;
    ask.value = "";
    pending = [];
    showPending();
    run(turns);
  }

  // The turn of an answer is asked once more; what followed it is gone.
  function again(article) {
    if (running) return;
    const i = [...said.children].indexOf(article.closest(".turn"));
    run([...chat.turns.slice(0, i), { ...chat.turns[i], answers: unanswered() }]);
  }

  function edit(i) {
    if (running) return;
    editing = i;
    ask.value = chat.turns[i].ask;
    pending = chat.turns[i].images ?? [];
    showPending();
    state.replaceChildren("Editing replaces later messages. ", button("Cancel", "Cancel editing", () => {
      editing = -1;
      ask.value = "";
      pending = [];
      showPending();
      state.textContent = "";
    }));
    ask.focus();
  }

  // Images, made small enough for a call.
  async function small(picture) {
    const bitmap = await createImageBitmap(picture);
    const scale = Math.min(1, 1280 / Math.max(bitmap.width, bitmap.height));
    const canvas = element("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const pen = canvas.getContext("2d");
    pen.fillStyle = "white";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", 0.85);
  }

  async function add(files) {
    for (const picture of files) {
      if (!picture.type.startsWith("image/") || pending.length >= most) continue;
      try { pending = [...pending, await small(picture)]; } catch { state.textContent = "That image cannot be read."; }
    }
    showPending();
  }

  function showPending() {
    images.replaceChildren(...pending.map((url, i) => {
      const picture = element("img");
      picture.src = url;
      picture.alt = "";
      return element("span", "", picture, button("Remove", "Remove image " + (i + 1), () => { pending = pending.filter((_, n) => n !== i); showPending(); }));
    }));
  }

  const sees = () => model.selectedOptions[0]?.dataset.vision !== undefined;
  const showVision = () => { attach.hidden = !sees(); };

  // The chats of this browser.
  function store(kept = chat) {
    if (!kept.named) kept.title = (kept.turns[0]?.ask ?? "").slice(0, 80);
    kept.at = Date.now();
    saved = performance.now();
    if (kept === chat) entitle();
    return chats.put(kept);
  }

  const list = chatList(chats, {
    current: () => chat.id,
    changed(id, what) {
      if (id !== chat.id) return;
      Object.assign(chat, what);
      entitle();
    },
    async removed(id) {
      if (id === chat.id) drop();
      await chats.remove(id);
    },
  });

  const address = (chat) => "/try/" + chat.id;
  const entitle = () => { document.title = (chat.title || "Chat") + " · kith"; };

  // Where a keyboard is part of the screen, it would cover the answer.
  const write = () => { if (!matchMedia("(pointer: coarse)").matches) ask.focus(); };

  // Ends the chat that is deleted, and a call of it.
  function drop() {
    chat.deleted = true;
    go("/try");
  }

  // Shows the chat of an address of this page.
  function go(path) {
    at("chats").hidePopover();
    if (path !== location.pathname) history.pushState(null, "", path);
    show();
    write();
  }

  async function show() {
    leave();
    start();
    const id = location.pathname.split("/")[2];
    if (id) {
      const old = await chats.get(id);
      if (location.pathname.split("/")[2] !== id) return; // another was opened since
      if (old) open(old);
      else {
        history.replaceState(null, "", "/try");
        state.textContent = "That chat is not in this browser: it was deleted, or written in another one.";
      }
    }
    document.body.classList.remove("opening");
    list();
  }

  function open(old) {
    chat = old;
    for (const i of chat.turns.keys()) showTurn(i);
    const [first, second] = chat.turns.at(-1)?.answers ?? [];
    choose(model, first?.model);
    choose(compare, second?.model ?? "");
    entitle();
    showCode();
    scrollTo(0, document.documentElement.scrollHeight);
  }

  function choose(select, name) {
    if (![...select.options].some((option) => option.value === name)) return;
    select.value = name;
    select.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function start() {
    chat = fresh();
    editing = -1;
    pending = [];
    said.replaceChildren();
    refused.replaceChildren();
    state.textContent = "";
    entitle();
    showPending();
    showCode();
  }

  // The chat as a program calls it.
  function showCode() {
    if (!at("code").open) return;
    const base = form.dataset.base + "/v1";
    const last = chat.turns.length - 1;
    const all = last >= 0 ? messages(0, last) : [{ role: "user", content: ask.value || "Hello" }];
    const short = (key, value) => (key === "url" && value.startsWith("data:") ? "data:image/jpeg;base64,…" : value);
    const body = JSON.stringify({ model: model.value, messages: all }, short, 2);
    const inner = JSON.stringify(all, short, 4);
    at("snippet").textContent = {
      curl: `curl ${base}/chat/completions \\\n  -H "Authorization: Bearer $KITH_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${body.replaceAll("'", "'\\''")}'`,
      python: `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(base)}, api_key=os.environ["KITH_API_KEY"])\nstream = client.chat.completions.create(\n    model=${JSON.stringify(model.value)},\n    messages=${inner},\n    stream=True,\n)\nfor chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
      javascript: `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(base)}, apiKey: process.env.KITH_API_KEY });\nconst stream = await client.chat.completions.create({\n  model: ${JSON.stringify(model.value)},\n  messages: ${inner},\n  stream: true,\n});\nfor await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`,
    }[at("language").value];
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); question(); });
  ask.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    question();
  });
  ask.addEventListener("paste", (event) => { if (sees() && event.clipboardData.files.length) { event.preventDefault(); add(event.clipboardData.files); } });
  stop.addEventListener("click", () => running?.abort());
  attach.addEventListener("click", () => file.click());
  file.addEventListener("change", async () => { await add(file.files); file.value = ""; });
  model.addEventListener("change", () => { showVision(); showCode(); });

  // Links to chats open them here, and the browser's history leads back.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".chat a[href^='/try']");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    if (link.pathname === "/try") ask.value = "";
    go(link.pathname);
  });
  addEventListener("popstate", () => { show(); write(); });

  compare.append(...[...model.options].map((option) => option.cloneNode(true)));
  compare.value = "";
  modelPicker(model);
  const compareButton = modelPicker(compare);
  const showComparing = () => { compareButton.hidden = !compare.value; };
  showComparing();
  compare.addEventListener("change", showComparing);
  at("compare-with").addEventListener("click", () => {
    at("more").hidePopover();
    compareButton.hidden = false;
    compareButton.click();
  });
  at("compare-list").addEventListener("toggle", ({ newState }) => { if (newState !== "open") showComparing(); });
  at("view-code").addEventListener("click", () => {
    at("more").hidePopover();
    at("code").showModal();
    showCode();
  });
  at("close-code").addEventListener("click", () => at("code").close());
  at("language").addEventListener("change", showCode);
  at("copy-code").addEventListener("click", async (event) => {
    await navigator.clipboard.writeText(at("snippet").textContent);
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Copy"; }, 2000);
  });
  at("clear").addEventListener("click", async () => {
    if (!confirm("Delete all chats that this browser keeps?")) return;
    drop();
    await chats.clear();
    list();
  });

  at("kept").firstElementChild.textContent = "Chats are kept in this browser alone.";
  for (const id of ["keys", "chats", "open-chats", "options"]) at(id).hidden = false;
  at("compare-with").hidden = model.options.length < 2;
  ask.removeAttribute("maxlength");
  for (const field of form.querySelectorAll("input[name=said]")) field.remove();
  showVision();
  document.body.classList.add("scripted");
  if (location.pathname !== "/try") document.body.classList.add("opening"); // an empty chat is not shown before
  show();
})();
