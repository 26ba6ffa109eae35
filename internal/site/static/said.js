// Draws the conversation: messages, answers, and what ended them.
"use strict";

// Returns the functions that draw a turn of a chat and parts of its answers. titles are those of
// the hub's codes. edit, again and remove get the number of a turn, choose the index of one to show in its place,
// rewrite the number of a turn, that of an answer to it, and its new text. draws returns what draws an answer into
// an element.
const conversation = (said, titles, { edit, again, remove, choose, rewrite, draws }) => {
  const icons = document.getElementById("icons").content;
  const icon = (name) => icons.querySelector('[href$="#' + name + '"]').parentNode.cloneNode(true);

  function button(text, label, act) {
    const made = element("button", "small plain", text);
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  // Returns a button with a symbol. act gets the button.
  function tool(symbol, label, act) {
    const made = button("", label, () => act(made));
    made.title = label;
    made.append(icon(symbol));
    return made;
  }

  function copyTool(what, text) {
    if (!text || !navigator.clipboard) return "";
    const label = "Copy the " + what;
    return tool("copy", label, async (made) => {
      const show = (symbol, words) => {
        made.replaceChildren(icon(symbol));
        made.ariaLabel = words;
      };
      await navigator.clipboard.writeText(text);
      show("check", "Copied");
      setTimeout(() => show("copy", label), 2000);
    });
  }

  // Returns what can be done with a message or an answer: its versions, and buttons. On a phone those
  // of any but the last answer are shown by one button.
  function tools(what, others, ...acts) {
    const more = tool("ellipsis", "Actions of the " + what, () => { more.ariaExpanded = String(more.ariaExpanded === "false"); });
    more.ariaExpanded = "false";
    more.classList.add("reveal");
    return element("div", "tools", others, more, element("span", "acts", ...acts));
  }

  // Returns buttons that lead to the versions of what, or "" if there is one only.
  function versions(all, now, what) {
    if (all.length < 2) return "";
    const n = all.indexOf(now);
    const step = (to, sign, name) => {
      const made = button(sign, name + " version of the " + what, () => choose(all[to], name));
      made.disabled = all[to] === undefined;
      return made;
    };
    const count = element("span", "muted", n + 1 + "/" + all.length);
    count.setAttribute("aria-label", "Version " + (n + 1) + " of " + all.length);
    count.setAttribute("role", "img");
    return element("span", "versions", step(n - 1, "‹", "Earlier"), count, step(n + 1, "›", "Later"));
  }

  // Draws the turn in place k, whose index in the chat is i, with its answers if they are not
  // about to come.
  function showTurn(chat, k, i, running = false) {
    const turn = chat.turns[i];
    const mine = element("article", "said user", element("header", "", element("strong", "", "You")), element("div", "text", turn.ask));
    if (turn.images?.length) {
      mine.append(element("div", "images", ...turn.images.map((url) => {
        const picture = element("img");
        picture.src = url;
        picture.alt = "Your image";
        return picture;
      })));
    }
    for (const { name, text } of turn.files ?? []) {
      const shown = element("pre", "", text);
      shown.tabIndex = 0;
      mine.append(element("details", "file", element("summary", "", name, " ", element("small", "muted", size(text.length))), shown));
    }
    for (const sound of turn.sounds ?? []) mine.append(element("p", "file", sound.name, " ", element("small", "muted", sizeOf(sound)), player(sound)));
    mine.append(tools("message", versions(tree.messages(chat, i), i, "message"), copyTool("message", turn.ask),
      tool("pencil", "Edit this message", () => edit(k)), tool("trash-2", "Delete this message", () => remove(k))));
    const place = element("div", turn.answers.length > 1 ? "turn two" : "turn", mine);
    for (const [n, answer] of turn.answers.entries()) place.append(showAnswer(answer, k, n, versions(tree.answers(chat, i), i, "answer"), running));
    if (said.children[k]) said.children[k].replaceWith(place);
    else said.append(place);
    return place;
  }

  // Returns what plays a sound of a message.
  function player({ name, data, format }) {
    const made = element("audio");
    made.controls = true;
    made.ariaLabel = name;
    made.src = "data:audio/" + (format === "mp3" ? "mpeg" : format) + ";base64," + data;
    return made;
  }

  // Creates the elements of an answer: its thinking, its text, its details and what can be done with it.
  function showAnswer(answer, k, n, others, running) {
    const article = element("article", "said assistant", element("header", "", element("strong", "", answer.model)));
    if (answer.edited) article.firstChild.append(" ", element("small", "muted", "edited"));
    const thinking = element("details", "thinking", element("summary", "", "Thinking"), element("div"));
    const text = element("div", "text");
    const meta = element("p", "meta muted");
    thinking.hidden = true;
    article.append(thinking, text, meta);
    article.parts = { thinking, text, meta, k, n, others };
    if (answer.thinking) showThinking(article, answer.thinking, answer.thought);
    if (answer.text) drawText(text, answer);
    if (!running) finishAnswer(article, answer);
    return article;
  }

  function drawText(into, answer) {
    into.replaceChildren();
    const drawn = draws(into);
    drawn.text = answer.text;
    drawn.end();
  }

  // Shows an answer as the model wrote it, or as it is drawn again.
  function showSource(into, answer, made) {
    made.ariaPressed = String(made.ariaPressed !== "true");
    if (made.ariaPressed === "true") into.replaceChildren(element("pre", "", answer.text));
    else drawText(into, answer);
  }

  // Has a field in the place of an answer.
  function editAnswer(article, answer) {
    const { text, k, n } = article.parts, field = element("textarea");
    const leave = () => {
      drawText(text, answer);
      finishAnswer(article, answer);
      article.querySelector("[aria-label='Edit this answer']").focus();
    };
    field.value = answer.text;
    field.setAttribute("aria-label", "The answer");
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      leave();
    });
    const save = button("Save", "Save the answer as another version", () => (field.value.trim() && field.value !== answer.text ? rewrite(k, n, field.value) : leave()));
    article.querySelector(":scope > .tools").remove();
    text.replaceChildren(field, element("div", "actions", save, button("Cancel", "Cancel editing the answer", leave)));
    save.className = "small";
    field.focus();
  }

  function showThinking(article, text, took) {
    const { thinking } = article.parts;
    thinking.hidden = false;
    thinking.firstChild.textContent = took ? "Thought for " + seconds(took) : "Thinking…";
    thinking.lastChild.textContent = text;
  }

  function finishAnswer(article, answer) {
    const { meta, k, others } = article.parts;
    meta.replaceChildren();
    if (answer.error) meta.append(refusal(answer.error, answer.id, answer.text || answer.thinking ? "The answer was interrupted" : "The call failed"));
    if (answer.stopped) meta.append("You stopped this answer. ");
    if (answer.open) meta.append("This answer is not complete. ");
    if (answer.meta) meta.append(answer.meta);
    article.querySelector(":scope > .tools")?.remove();
    const ofText = answer.text ? [copyTool("answer", answer.text), tool("pencil", "Edit this answer", () => editAnswer(article, answer)),
      tool("code", "Show the source", (made) => showSource(article.parts.text, answer, made))] : [];
    article.append(tools("answer", others, ...ofText, tool("rotate-cw", "Regenerate the answer with the chosen model", () => again(k))));
  }

  // Returns why a call failed, with a link to its explanation. Errors that are
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

  return { button, showTurn, showThinking, finishAnswer, refusal };
};

// Returns a time in milliseconds as people write it.
const seconds = (ms) => (ms < 100 ? Math.round(ms) + " ms" : (ms < 9950 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)) + " s");

// Returns a number of bytes or of characters as people write it.
const size = (n) => (n < 1000 ? n + " B" : n < 1e6 ? Math.round(n / 1000) + " KB" : (n / 1e6).toFixed(1) + " MB");

// Returns the size of a file or a sound that is added.
const sizeOf = ({ text, data }) => size(text?.length ?? Math.floor(data.replace(/=+$/, "").length * 3 / 4));
