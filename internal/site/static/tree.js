// The turns of a chat are a tree: an edited message and a regenerated answer are a turn of their
// own beside the earlier one. chat.turns has all of them, the oldest first. A turn is {ask, images,
// sounds, files, answers, parent, message, next}. parent is the index of the turn before it, -1 at the
// first. message is the index of the first turn with the same message in the same place. next is
// the index of the turn that is shown after it, and chat.next of the first that is shown.
"use strict";

const tree = (() => {
  const before = (chat, parent) => chat.turns[parent] ?? chat;

  // Returns the indexes of the turns that are shown.
  function path(chat) {
    const shown = [];
    for (let i = chat.next; chat.turns[i]; i = chat.turns[i].next) shown.push(i);
    return shown;
  }

  // Adds a turn after another and shows it. Returns the function that undoes this.
  function add(chat, parent, turn) {
    const i = chat.turns.length, at = before(chat, parent), shown = at.next;
    chat.turns.push(Object.assign(turn, { parent, message: turn.message ?? i }));
    at.next = i;
    return () => {
      chat.turns.pop();
      at.next = shown;
    };
  }

  function show(chat, i) { before(chat, chat.turns[i].parent).next = i; }

  const beside = (chat, i) => [...chat.turns.keys()].filter((n) => chat.turns[n].parent === chat.turns[i].parent);

  // Returns the indexes of the turns with other answers to the same message, and i.
  const answers = (chat, i) => beside(chat, i).filter((n) => chat.turns[n].message === chat.turns[i].message);

  // Returns i and, for each other message in its place, the index of the newest turn with it.
  function messages(chat, i) {
    const newest = new Map();
    for (const n of beside(chat, i)) newest.set(chat.turns[n].message, n);
    newest.set(chat.turns[i].message, i);
    return [...newest.values()];
  }

  // Removes the message of a turn with all its answers, and what follows them. Another message in
  // its place is shown then, if there is one.
  function remove(chat, i) {
    const gone = new Set(answers(chat, i)), at = before(chat, chat.turns[i].parent);
    for (const [n, { parent }] of chat.turns.entries()) if (gone.has(parent)) gone.add(n); // a parent is before it
    at.next = beside(chat, i).findLast((n) => !gone.has(n));
    const kept = [...chat.turns.keys()].filter((n) => !gone.has(n));
    const now = (n) => (n < 0 || n === undefined ? n : kept.indexOf(n));
    chat.next = now(chat.next);
    chat.turns = kept.map((n) => chat.turns[n]);
    for (const turn of chat.turns) Object.assign(turn, { parent: now(turn.parent), message: now(turn.message), next: now(turn.next) });
  }

  // Makes a tree of a chat that was stored as a list, and returns the chat.
  function upgrade(chat) {
    if (chat.turns.length === 0 || chat.turns[0].parent !== undefined) return chat;
    for (const [i, turn] of chat.turns.entries()) {
      Object.assign(turn, { parent: i - 1, message: i });
      if (i + 1 < chat.turns.length) turn.next = i + 1;
    }
    chat.next = 0;
    return chat;
  }

  return { path, add, show, answers, messages, remove, upgrade };
})();
