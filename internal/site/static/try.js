// The chat: it streams answers, stores conversations in this browser, each with its own
// address, and compares two models. Without this script the form returns each answer complete.
"use strict";

(() => {
  const form = document.getElementById("try");
  if (!form || !window.ReadableStream) return;
  const at = (id) => document.getElementById(id);
  const said = at("said"), refused = at("refused"), state = at("state"), send = at("send"), stop = at("stop"), ask = at("ask");
  const model = at("model"), compare = at("compare"), attached = at("attached"), file = at("file"), attach = at("attach");
  const chats = chatHistory(form.dataset.member);

  // A chat is {id, at, title, named, pinned, settings, turns, next}, with the turns of tree.js. When two
  // models are compared, each continues from its own answers. An answer is open until it has ended:
  // what is stored of one whose page was left stays so.
  let chat = fresh();
  let pending = []; // images, {url}, sounds, {name, data, format}, and files, {name, text}, of the message that is being written
  let editing = -1; // number of the turn that is being edited
  let running = null;
  let following = true;
  let saved = 0; // when the chat was stored last, on the clock of performance.now

  // Its id is made without randomUUID, which a hub at a plain HTTP address does not have.
  function fresh() {
    const id = Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    return { id, at: Date.now(), title: "", turns: [] };
  }

  // Parts of this page that are loaded when they are needed first, by name. Trusted Types: a
  // worker's script can only have an address that is in the page.
  const parts = JSON.parse(form.dataset.parts);
  const policy = window.trustedTypes?.createPolicy("chat-worker", { createScriptURL: (name) => parts[name] });
  const script = (name) => policy?.createScriptURL(name) ?? parts[name];
  async function load(name) {
    try {
      return await import(parts[name]);
    } catch {
      throw new Error("A part of this page cannot be loaded; check the connection and try again.");
    }
  }

  // Loads what draws answers.
  let drawing;
  async function loadDrawing() {
    await Promise.all([load("marked"), load("purify")]);
    drawing = await load("markdown");
  }
  const draws = (into) => new drawing.Answer(into, load);
  const report = (error) => { state.textContent = error.message; };

  // The page scrolls with the answer while its end is visible.
  addEventListener("scroll", () => {
    following = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  }, { passive: true });
  const follow = () => { if (following) scrollTo(0, document.documentElement.scrollHeight); };

  const view = conversation(said, JSON.parse(form.dataset.titles), { edit, again, remove, choose, rewrite, draws });
  const { button } = view;
  const shown = () => tree.path(chat).map((i) => chat.turns[i]);

  // Returns the message of a turn in the chat dialect, whose files follow the text.
  function message({ ask, images = [], sounds = [], files = [] }) {
    const text = [ask, ...files.map(fenced)].filter(Boolean).join("\n\n");
    const media = [...images.map((url) => ({ type: "image_url", image_url: { url } })), ...sounds.map(({ data, format }) => ({ type: "input_audio", input_audio: { data, format } }))];
    return { role: "user", content: media.length ? [{ type: "text", text }, ...media] : text };
  }

  // Returns the call of a model that answers the last of the turns.
  function request(name, column, turns) {
    const { system, ...more } = settings.parameters([...model.options].find((option) => option.value === name));
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const [i, turn] of turns.entries()) {
      messages.push(message(turn));
      const answer = turn.answers[column] ?? turn.answers[0];
      if (i + 1 < turns.length && answer?.text) messages.push({ role: "assistant", content: answer.text });
    }
    return { model: name, ...more, messages };
  }

  const models = () => (compare.value && compare.value !== model.value ? [model.value, compare.value] : [model.value]);
  const unanswered = () => models().map((name) => ({ model: name, text: "" }));
  const settings = chatSettings(() => [...model.selectedOptions, ...compare.selectedOptions], (now) => {
    chat.settings = now;
    if (chat.turns.length) store();
  });

  // Draws the turns from place k on.
  function showFrom(k) {
    const path = tree.path(chat);
    for (let n = k; n < path.length; n++) view.showTurn(chat, n, path[n]);
    while (said.children.length > path.length) said.lastChild.remove();
    showContext();
  }

  // Shows another version of a message or an answer, and what followed it.
  function choose(i, name) {
    if (running) return;
    cancelEdit();
    tree.show(chat, i);
    const k = tree.path(chat).indexOf(i), what = document.activeElement?.getAttribute("aria-label");
    showFrom(k);
    const buttons = [...said.children[k].querySelectorAll(".versions button")].filter((b) => b.ariaLabel?.endsWith(what?.split(" ").at(-1)));
    (buttons.find((b) => b.ariaLabel === what && !b.disabled) ?? buttons.find((b) => !b.disabled))?.focus();
    store().then(list);
  }

  // Shows how much of the model's context the last answer used, if both are known.
  function showContext() {
    const used = shown().findLast((turn) => turn.answers[0]?.used)?.answers[0];
    const most = Number([...model.options].find((option) => option.value === used?.model)?.dataset.context);
    at("context").hidden = !(most > 0);
    if (!(most > 0)) return;
    const [bar, words] = at("context").children;
    bar.value = Math.min(1, used.used / most);
    words.textContent = Math.ceil(100 * bar.value) + " % of context";
    at("context").title = used.used.toLocaleString("en-US") + " of " + most.toLocaleString("en-US") + " tokens of the context are used";
  }

  // Browsers may cache a page that the user left, with its worker. The call would then
  // continue for up to a minute.
  const left = new Error("the page was left");
  const calls = chatCalls(form.dataset.post, script("worker"), () => running?.abort(new Error("the worker failed")));
  addEventListener("pagehide", () => {
    if (running) chats.put(chat);
    running?.abort(left);
    calls.leave();
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

  // One model's answer to a turn, into its place.
  async function answerOf(turns, column, article, signal) {
    const answer = turns.at(-1).answers[column];
    await loadDrawing();
    signal.throwIfAborted();
    const begun = performance.now(), drawn = draws(article.parts.text);
    let first = 0, pieces = 0, tokens = 0, machine = "", done = false;

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
      if (event.usage) {
        tokens = event.usage.completion_tokens || tokens;
        answer.used = (event.usage.prompt_tokens + event.usage.completion_tokens) || undefined;
      }
      const delta = event.choices?.[0]?.delta ?? {};
      const thinks = delta.reasoning_content ?? delta.reasoning;
      if (!delta.content && !thinks) return;
      first ||= performance.now();
      pieces++;
      if (delta.content) {
        if (answer.thinking && !answer.thought) {
          answer.thought = performance.now() - first;
          view.showThinking(article, answer.thinking, answer.thought);
        }
        if (!answer.text) state.textContent = "Answering…";
        answer.text += delta.content;
        drawn.add(delta.content);
      } else {
        if (!answer.thinking) state.textContent = "Thinking…";
        answer.thinking = (answer.thinking ?? "") + thinks;
      }
    }

    try {
      await calls.call({ stream: true, stream_options: { include_usage: true }, ...request(answer.model, column, turns) }, signal, ({ id, route, lines = [], error }) => {
        const begun = performance.now(), before = pieces;
        answer.id ||= id;
        machine ||= machineOf(route);
        for (const line of lines) read(line);
        if (error) throw error;
        if (pieces === before) return 0;
        if (answer.text) drawn.draw();
        else view.showThinking(article, answer.thinking);
        follow();
        if (performance.now() - saved > 1000) store();
        return Math.max(200, 60 * (performance.now() - begun)); // painting takes as long again: 3 % of a core in all
      });
      if (!done) throw new Error("the response ended without [DONE]");
    } finally {
      if (answer.text) drawn.end();
      if (answer.thinking) view.showThinking(article, answer.thinking, answer.thought || performance.now() - first);
      if (first) {
        const took = (performance.now() - first) / 1000;
        const rate = (tokens || pieces) / took;
        answer.meta = answer.model + (machine ? " on " + machine : "") + " · " + seconds(first - begun) + " to first token" +
          ((tokens || pieces) >= 10 && took > 0 ? " · " + (rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en-US")) + " tokens/s" : "");
      }
    }
  }

  // Asks a turn, which follows the one with the index parent: of one model, or of two at once. If
  // nothing comes, the chat is what it was before.
  async function run(parent, turn) {
    const mine = chat, undo = tree.add(chat, parent, turn), turns = shown(), k = turns.length - 1;
    for (const answer of turn.answers) answer.open = true;
    const place = view.showTurn(chat, k, chat.turns.length - 1, true);
    while (said.children.length > k + 1) said.lastChild.remove();
    refused.replaceChildren();
    said.setAttribute("aria-busy", "true");
    state.textContent = "Waiting for a machine…";
    send.hidden = send.disabled = true;
    stop.hidden = false;
    const call = running = new AbortController(), signal = call.signal;
    if (location.pathname !== address(chat)) history.replaceState(null, "", address(chat));
    const articles = place.querySelectorAll(".assistant");
    store().then(list);
    following = true;
    follow();
    await Promise.all(turn.answers.map(async (answer, column) => {
      try {
        await answerOf(turns, column, articles[column], signal);
        answer.open = false;
      } catch (error) {
        answer.open = error === left;
        answer.stopped = error.name === "AbortError";
        if (!answer.open && !answer.stopped) answer.error = error instanceof Error ? { code: "connection", message: "the connection ended before the answer did" } : { code: error.code, message: error.message };
      }
      view.finishAnswer(articles[column], answer);
    }));
    if (chat !== mine) { // another is shown
      if (!mine.deleted) store(mine).then(list);
      return;
    }
    if (running === call) ended();
    state.textContent = turn.answers.some((answer) => answer.stopped) ? "Stopped." : "";
    if (turn.answers.every((answer) => !answer.text && !answer.thinking && !answer.open)) {
      const failed = turn.answers.find((answer) => answer.error);
      if (failed) refused.replaceChildren(element("div", "notice problem", element("p", "", view.refusal(failed.error, failed.id, "The call failed"))));
      undo();
      showFrom(k);
      if (turn.message === chat.turns.length) writeAgain(turn, k); // else it is shown, with an earlier answer
    }
    if (chat.turns.length === 0) history.replaceState(null, "", "/try");
    (chat.turns.length ? store() : chats.remove(chat.id)).then(list);
    showContext();
    follow();
    write();
  }

  // Has the message of a turn that was not answered in the field again.
  function writeAgain(turn, k) {
    const typed = ask.value;
    if (k < shown().length) edit(k);
    ask.value = typed || turn.ask;
    pending = contents(turn);
    showPending();
  }

  const contents = ({ images = [], sounds = [], files = [] }) => [...images.map((url) => ({ url })), ...sounds, ...files];
  const isImage = ({ url }) => url, isSound = ({ data }) => data, isFile = ({ text }) => text;

  function question() {
    if (running || !ask.value.trim() && pending.length === 0) return;
    const turn = {
      ask: ask.value, images: pending.filter(isImage).map(({ url }) => url), sounds: pending.filter(isSound), files: pending.filter(isFile), answers: unanswered(),
    };
    const path = tree.path(chat), parent = (editing >= 0 ? path[editing - 1] : path.at(-1)) ?? -1;
    clear();
    run(parent, turn);
  }

  // Returns the message of the turn in place k, for another turn with it.
  function asked(k) {
    const { message, ask, images, sounds, files } = shown()[k];
    return { message, ask, images, sounds, files };
  }

  // The message of the turn in place k is answered once more.
  function again(k) {
    if (running) return;
    cancelEdit();
    run(shown()[k].parent, { ...asked(k), answers: unanswered() });
  }

  // Adds a version of an answer to the turn in place k that the member wrote.
  function rewrite(k, n, text) {
    if (running) return;
    cancelEdit();
    const { parent, answers } = shown()[k];
    tree.add(chat, parent, { ...asked(k), answers: answers.with(n, { model: answers[n].model, text, edited: true }) });
    showFrom(k);
    store().then(list);
    write();
  }

  function remove(k) {
    if (running || !confirm("Delete this message, its answers and what follows them?")) return;
    cancelEdit();
    tree.remove(chat, tree.path(chat)[k]);
    if (chat.turns.length === 0) {
      chats.remove(chat.id).then(list);
      go("/try");
      return;
    }
    showFrom(k);
    store().then(list);
    write();
  }

  function edit(k) {
    if (running) return;
    editing = k;
    const turn = shown()[k];
    ask.value = turn.ask;
    pending = contents(turn);
    showPending();
    state.replaceChildren("The earlier version stays. ", button("Cancel", "Cancel editing", () => { cancelEdit(); write(); }));
    ask.focus();
  }

  // Empties the field, and ends the editing of a message.
  function clear() {
    editing = -1;
    ask.value = "";
    pending = [];
    showPending();
    state.textContent = "";
  }
  const cancelEdit = () => { if (editing >= 0) clear(); };

  const kinds = [["images", isImage, 4], ["audio files", isSound, 2], ["files", isFile, 8]]; // how many a message has at most
  const longText = 5000; // characters of a pasted text that becomes a file

  // Adds images, sounds, and files whose text is taken out here.
  async function add(files) {
    if (files.length === 0) return;
    const reading = chat, { vision, audio } = model.selectedOptions[0]?.dataset ?? {};
    state.textContent = "Reading…";
    try {
      const { read } = await load("files");
      let notes = "";
      for (const one of files) {
        const room = kinds[0][2] - pending.filter(isImage).length;
        const takes = { model: model.value, images: vision !== undefined, audio: audio !== undefined, room };
        const { parts, note } = await read(one, takes, () => load("pdf"), () => script("pdfworker"));
        if (chat !== reading) return; // another chat is shown
        for (const [kind, is, most] of kinds) {
          if (parts.some(is) && [...pending, ...parts].filter(is).length > most) throw new Error("A message has at most " + most + " " + kind + ".");
        }
        pending = [...pending, ...parts];
        notes = note ?? notes;
      }
      state.textContent = notes;
    } catch (error) { report(error); }
    showPending();
    write();
  }

  function showPending() {
    attached.replaceChildren(...pending.map((one, i) => {
      const remove = button("", "Remove " + (one.name ?? "image " + (i + 1)), () => {
        pending = pending.filter((other) => other !== one);
        showPending();
        write();
      });
      remove.append(at("shortcuts").querySelector("svg").cloneNode(true));
      if (!one.url) return element("span", "file", element("span", "", one.name), " ", element("small", "muted", sizeOf(one)), remove);
      const picture = element("img");
      picture.src = one.url;
      picture.alt = "";
      return element("span", "file", picture, remove);
    }));
  }

  // The chats of this browser.
  function store(kept = chat) {
    const first = kept.turns[kept.next];
    if (!kept.named) kept.title = (first?.ask.trim() || [...first?.files ?? [], ...first?.sounds ?? []][0]?.name || "").slice(0, 80);
    kept.at = Date.now();
    saved = performance.now();
    if (kept === chat) entitle();
    return chats.put(kept);
  }

  const { list, rename } = chatList(chats, {
    current: () => chat.id,
    changed(id, what) {
      if (id !== chat.id) return;
      Object.assign(chat, what);
      entitle();
    },
    removed: removeChat,
    exported: (one, form) => transfer(({ saveJSON, saveMarkdown }) => (form === "JSON" ? saveJSON([one]) : saveMarkdown(one))),
  });

  async function removeChat(id) {
    if (id === chat.id) drop();
    await chats.remove(id);
  }

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
      const [old, error] = await Promise.all([chats.get(id), loadDrawing().catch((error) => error)]);
      if (location.pathname.split("/")[2] !== id) return; // another was opened since
      if (error) report(error);
      else if (old) open(old);
      else {
        history.replaceState(null, "", "/try");
        state.textContent = "That chat is not in this browser: it was deleted, or written in another one.";
      }
    }
    document.body.classList.remove("opening");
    list();
  }

  function open(old) {
    chat = tree.upgrade(old);
    const [first, second] = shown().at(-1)?.answers ?? [];
    select(model, first?.model);
    select(compare, second?.model ?? "");
    settings.show(chat.settings);
    showFrom(0);
    entitle();
    scrollTo(0, document.documentElement.scrollHeight);
  }

  function select(field, name) {
    if (![...field.options].some((option) => option.value === name)) return;
    field.value = name;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function start() {
    const typed = editing < 0 ? ask.value : "";
    chat = fresh();
    clear();
    ask.value = typed;
    said.replaceChildren();
    refused.replaceChildren();
    settings.show({});
    showContext();
    entitle();
  }

  // Shows the chat as a program calls it.
  async function showCode() {
    const turns = shown();
    if (turns.length === 0) turns.push({ ask: ask.value || "Hello", answers: [] });
    (await load("code")).show(form.dataset.base + "/v1", request(model.value, 0, turns));
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); question(); });
  ask.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    question();
  });
  ask.addEventListener("input", () => { loadDrawing().catch(() => {}); }, { once: true }); // before the answer needs it
  ask.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text/plain"); // a text processor adds a picture of it
    if (text ? text.length < longText : event.clipboardData.files.length === 0) return;
    event.preventDefault();
    add(text ? [new File([text], "pasted.txt")] : [...event.clipboardData.files]);
  });
  const brings = (event) => event.dataTransfer?.types.includes("Files");
  const dropping = (on) => form.classList.toggle("dropping", on);
  addEventListener("dragover", (event) => { if (brings(event)) { event.preventDefault(); dropping(true); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) dropping(false); });
  addEventListener("drop", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    dropping(false);
    add([...event.dataTransfer.files]);
  });
  stop.addEventListener("click", () => running?.abort());
  attach.addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    add([...file.files]);
    file.value = "";
  });
  model.addEventListener("change", () => { settings.mark(); showContext(); });

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
  compare.addEventListener("change", settings.mark);
  const menu = (id, act) => at(id).addEventListener("click", () => {
    at("more").hidePopover();
    Promise.resolve(act()).catch(report);
  });
  function compareWith() {
    compareButton.hidden = false;
    compareButton.click();
  }
  menu("compare-with", compareWith);
  at("compare-list").addEventListener("toggle", ({ newState }) => { if (newState !== "open") showComparing(); });
  menu("view-code", showCode);
  menu("find-all", findAll);
  menu("show-shortcuts", () => at("shortcuts").showModal());
  for (const close of document.querySelectorAll("dialog .close")) close.addEventListener("click", () => close.closest("dialog").close());
  const transfer = (act) => load("transfer").then(act).catch(report);
  at("import").addEventListener("click", () => at("import-file").click());
  at("import-file").addEventListener("change", async ({ target }) => {
    await transfer(async ({ bring }) => { state.textContent = await bring(target.files[0], chats); });
    target.value = "";
    at("chats").hidePopover();
    list();
  });
  at("export-all").addEventListener("click", () => transfer(async ({ saveJSON }) => saveJSON(await chats.all())));

  function newChat() {
    clear();
    go("/try");
  }

  // Where there is room the list of chats is beside the chat, unless this browser hides it; else
  // it is a drawer.
  const chatsList = at("chats"), narrow = matchMedia("(max-width: 64rem)");
  const markList = () => { at("open-chats").ariaExpanded = String(chatsList.checkVisibility()); };
  function toggleList() {
    const within = chatsList.contains(document.activeElement);
    if (narrow.matches) chatsList.togglePopover();
    else localStorage.setItem("chats", document.body.classList.toggle("alone") ? "hidden" : "shown");
    markList();
    if (within && !chatsList.checkVisibility()) ask.focus();
  }
  document.body.classList.toggle("alone", localStorage.getItem("chats") === "hidden");
  at("open-chats").addEventListener("click", toggleList);
  chatsList.addEventListener("toggle", markList);
  narrow.addEventListener("change", markList);

  function renameShown() {
    if (chat.turns.length === 0) return;
    if (!chatsList.checkVisibility()) toggleList();
    rename();
  }

  function removeShown() {
    if (chat.turns.length > 0 && confirm("Delete this chat?")) removeChat(chat.id).then(list);
  }

  // Opens the list of all that can be chosen here.
  async function findAll() {
    const click = (id) => () => at(id).click();
    (await load("palette")).open({
      chats: await chats.all(), models: [...model.options],
      show: (one) => go(address(one)),
      select: (name) => { select(model, name); write(); },
      commands: {
        "New chat": newChat, ...(chat.turns.length === 0 ? {} : { "Rename this chat": renameShown, "Delete this chat": removeShown }), ...(at("compare-with").hidden ? {} : { "Compare with another model": compareWith }), "Chat settings": click("set-chat"), "Show or hide the chats": toggleList, "View code": showCode,
        "Import chats": click("import"), "Export all chats": click("export-all"), "Keyboard shortcuts": click("show-shortcuts"),
      },
    });
  }

  document.addEventListener("keydown", (event) => {
    const { key, ctrlKey, metaKey, altKey, shiftKey } = event;
    if (event.defaultPrevented || event.isComposing || altKey) return;
    const control = (ctrlKey || metaKey) && { k: findAll, b: toggleList, O: newChat, E: renameShown, D: removeShown }[shiftKey ? key.toUpperCase() : key.toLowerCase()];
    const typing = event.target.matches("input, select, textarea"), over = document.querySelector("dialog[open], [popover]:popover-open");
    if (control) Promise.resolve(control()).catch(report);
    else if (ctrlKey || metaKey) return;
    else if (key === "Escape" && !over && running) running.abort();
    else if (key === "Escape" && !over && editing >= 0) cancelEdit();
    else if (key === "/" && !typing && !over) ask.focus();
    else if (key === "?" && !typing && !over) at("shortcuts").showModal();
    else return;
    event.preventDefault();
  });
  at("clear").addEventListener("click", async () => {
    if (!confirm("Delete all chats that this browser keeps?")) return;
    drop();
    await chats.clear();
    list();
  });

  at("kept").firstElementChild.textContent = "Chats are kept in this browser alone.";
  for (const id of ["keys", "chats", "open-chats", "options", "attach"]) at(id).hidden = false;
  markList();
  at("compare-with").hidden = model.options.length < 2;
  for (const name of ["maxlength", "required"]) ask.removeAttribute(name);
  for (const field of form.querySelectorAll("input[name=said]")) field.remove();
  document.body.classList.add("scripted");
  if (location.pathname !== "/try") document.body.classList.add("opening"); // an empty chat is not shown before
  show();
})();
