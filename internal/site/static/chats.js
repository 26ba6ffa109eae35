// The list of the chats of this browser, which can be searched, renamed, pinned, exported and deleted.
"use strict";

// Returns list, which reads the chats and draws the list, and rename, which edits the name of the chat that is
// shown. current returns the id of that chat. changed gets the id of a chat and the fields that it is about
// to get, removed the id of one to delete, exported a chat and the name of a form.
const chatList = (chats, { current, changed, removed, exported }) => {
  const at = (id) => document.getElementById(id);
  const place = at("history"), find = at("find"), menu = at("chat-menu");
  let all = [], chosen = null;

  const midnight = (time) => new Date(time).setHours(0, 0, 0, 0);
  function heading(chat) {
    if (chat.pinned) return "Pinned";
    const days = Math.round((midnight(Date.now()) - midnight(chat.at)) / 86400_000);
    return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "Previous 7 days" : "Older";
  }

  function row(chat) {
    const link = element("a", "", chat.title || "Chat");
    link.href = "/try/" + chat.id;
    link.title = link.textContent;
    if (chat.id === current()) link.setAttribute("aria-current", "page");
    const more = element("button", "plain", at("options").firstElementChild.cloneNode(true));
    more.type = "button";
    more.setAttribute("aria-label", "Options of the chat " + link.textContent);
    more.addEventListener("click", () => {
      chosen = { chat, link };
      at("pin").textContent = chat.pinned ? "Unpin" : "Pin";
      menu.showPopover({ source: more });
    });
    return element("li", "", link, more);
  }

  // Draws the chats that have each word of the search, in any order.
  function draw() {
    const finds = finder(find.value), found = all.filter(({ text }) => finds(text));
    place.replaceChildren();
    let list = null, last = "";
    for (const { chat } of found) {
      if (heading(chat) !== last) {
        last = heading(chat);
        list = element("ul");
        place.append(element("h2", "", last), list);
      }
      list.append(row(chat));
    }
    if (found.length === 0) place.append(element("p", "muted", all.length === 0 ? "No chats yet" : "No chats match."));
    for (const id of ["clear", "export-all"]) at(id).hidden = all.length === 0;
  }

  async function load() {
    all = (await chats.all()).map((chat) => ({ chat, text: textOfChat(chat) }));
    draw();
  }

  // Puts a field in the place of a chat's link. Enter and leaving it save the name, Escape does not.
  function rename({ chat, link }) {
    const field = element("input");
    field.value = chat.title;
    field.maxLength = 80;
    field.setAttribute("aria-label", "Name of the chat");
    const end = async (name) => {
      field.removeEventListener("blur", leave);
      if (name && name !== chat.title) await change(chat, { title: name, named: true });
      else draw();
    };
    const leave = () => end(field.value.trim());
    field.addEventListener("blur", leave);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") leave();
      else if (event.key === "Escape") end("");
      else return;
      event.preventDefault();
    });
    link.replaceWith(field);
    field.focus();
    field.select();
  }

  async function change(chat, what) {
    changed(chat.id, what);
    const kept = await chats.get(chat.id);
    if (kept) await chats.put({ ...kept, ...what });
    await load();
  }

  function menuItem(id, act) {
    at(id).addEventListener("click", () => {
      menu.hidePopover();
      act(chosen);
    });
  }
  menuItem("pin", ({ chat }) => change(chat, { pinned: !chat.pinned }));
  menuItem("rename", rename);
  menuItem("export-markdown", ({ chat }) => exported(chat, "Markdown"));
  menuItem("export-json", ({ chat }) => exported(chat, "JSON"));
  menuItem("delete", async ({ chat }) => {
    await removed(chat.id);
    load();
  });
  find.addEventListener("input", draw);
  return {
    list: load,
    rename() {
      find.value = "";
      draw();
      const link = place.querySelector("[aria-current]");
      if (link) rename({ chat: all.find(({ chat }) => chat.id === current()).chat, link });
    },
  };
};

// Returns what a search finds of a chat, in lower case.
const textOfChat = (chat) => [chat.title, ...chat.turns.flatMap(({ ask, sounds = [], files = [], answers }) => [ask, ...[...sounds, ...files].map(({ name }) => name), ...answers.map(({ text }) => text)])].join("\n").toLowerCase();
