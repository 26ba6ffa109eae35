// Stores the chats of one member, only in this browser's database. If the browser has no
// database, as in some private windows, they are not stored.
"use strict";

const chatHistory = (member) => {
  const most = 200;
  const opened = new Promise((resolve) => {
    if (!window.indexedDB) return resolve(null);
    const request = indexedDB.open("kith-chats", 1);
    request.addEventListener("upgradeneeded", () => request.result.createObjectStore("chats", { keyPath: "id" }).createIndex("member", "member"));
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => resolve(null));
  });

  async function act(mode, what, none) {
    const db = await opened;
    if (!db) return none;
    return new Promise((resolve) => {
      const transaction = db.transaction("chats", mode);
      const request = what(transaction.objectStore("chats"));
      transaction.commit(); // now, since the page may be about to end
      transaction.addEventListener("complete", () => resolve(request?.result));
      transaction.addEventListener("error", () => resolve(none));
      transaction.addEventListener("abort", () => resolve(none)); // no space: the chat is only in the page
    });
  }

  // Returns all chats: those that are pinned first, then the newest.
  async function all() {
    const found = await act("readonly", (chats) => chats.index("member").getAll(member), []);
    return (found ?? []).sort((a, b) => Boolean(b.pinned) - Boolean(a.pinned) || b.at - a.at);
  }

  return {
    all,
    most,
    async get(id) {
      const found = await act("readonly", (chats) => chats.get(id));
      return found?.member === member ? found : undefined;
    },
    async put(chat) {
      await act("readwrite", (chats) => chats.put({ ...chat, member }));
      if (await act("readonly", (chats) => chats.index("member").count(member), 0) <= most) return;
      for (const old of (await all()).slice(most)) await act("readwrite", (chats) => chats.delete(old.id));
    },
    // Reports whether the database has a chat with this id, of any member.
    has: async (id) => (await act("readonly", (chats) => chats.count(id), 0)) > 0,
    remove: (id) => act("readwrite", (chats) => chats.delete(id)),
    async clear() {
      for (const chat of await all()) await act("readwrite", (chats) => chats.delete(chat.id));
    },
  };
};
