// Writes chats to files and reads them again. Chat loads this module when one is exported or imported.

// The form of an exported file: {kith_chats: 1, chats: [...]}.
const version = 1;
const mostBytes = 64 << 20;

function save(name, type, text) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // by then the browser has it
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}.-]+/gu, "-").replace(/^[-.]+|-+$/g, "").slice(0, 60) || "chat";

// Saves chats as JSON, with all versions of their messages and answers.
export function saveJSON(chats) {
  const all = chats.map(({ member, deleted, ...chat }) => tree.upgrade(chat));
  save(all.length === 1 ? fileName(all[0].title) + ".json" : "chats.json", "application/json", JSON.stringify({ kith_chats: version, chats: all }, null, 1) + "\n");
}

// Saves what is shown of a chat as Markdown.
export function saveMarkdown(chat) {
  tree.upgrade(chat);
  const text = ["# " + (chat.title || "Chat")];
  if (chat.settings?.system) text.push("## System prompt", chat.settings.system);
  for (const i of tree.path(chat)) {
    const { ask, images, sounds, files, answers } = chat.turns[i];
    text.push("## You", ask, ...(files ?? []).map(fenced));
    if (images?.length) text.push("*" + images.length + (images.length === 1 ? " image" : " images") + "*");
    for (const { name } of sounds ?? []) text.push("*" + name + "*");
    for (const answer of answers) text.push("## " + answer.model + (answer.edited ? " (edited)" : ""), answer.text || "*No answer*");
  }
  save(fileName(chat.title) + ".md", "text/markdown", text.filter(Boolean).join("\n\n") + "\n");
}

// Stores the chats of an exported file. Those that are here already stay as they are. Returns what
// it did, in a sentence; the error's message is for the member, too.
export async function bring(file, chats) {
  const all = await readJSON(file), there = (await chats.all()).length, added = [];
  for (const chat of all) if (!await chats.has(chat.id)) added.push(chat);
  if (there + added.length > chats.most) {
    throw new Error("This browser keeps " + chats.most + " chats at most and has " + there + ": delete some before you import " + added.length + ".");
  }
  for (const chat of added) await chats.put(chat);
  return added.length + (added.length === 1 ? " chat" : " chats") + " imported" + (added.length < all.length ? ", " + (all.length - added.length) + " already here." : ".");
}

// Returns the chats of an exported file.
async function readJSON(file) {
  const fail = (why) => { throw new Error(file.name + " cannot be imported: " + why + "."); };
  if (file.size > mostBytes) fail("it is " + size(file.size) + ", more than " + size(mostBytes));
  let all;
  try { all = JSON.parse(await file.text()); } catch { fail("it is not JSON"); }
  if (all?.kith_chats === undefined) fail("it is not an export of Chat");
  if (all.kith_chats !== version) fail("it was written by another version of kith, as form " + all.kith_chats);
  try {
    return listOf(chatFrom)(all.chats, "chats");
  } catch (error) {
    return fail(error.message);
  }
}

// What may be in a file. Each function returns its value without what is not known, or throws an
// error with where the first wrong one is.
const wrong = (where, want) => { throw new Error(where + " is not " + want); };
const text = (value, where) => (typeof value === "string" ? value : wrong(where, "a text"));
const number = (least, most) => (value, where) => (Number.isFinite(value) && value >= least && value <= most ? value : wrong(where, "a number from " + least + " to " + most));
const bool = (value, where) => (typeof value === "boolean" ? value : wrong(where, "true or false"));
const matching = (form, want) => (value, where) => (form.test(text(value, where)) ? value : wrong(where, want));
const listOf = (item) => (value, where) => (Array.isArray(value) ? value.map((one, i) => item(one, where + "[" + i + "]")) : wrong(where, "a list"));
const object = (fields, optional) => (value, where) => {
  if (typeof value !== "object" || value === null || Array.isArray(value)) wrong(where, "an object");
  const made = {};
  for (const [name, read] of Object.entries(fields)) made[name] = read(value[name], where + "." + name);
  for (const [name, read] of Object.entries(optional)) if (value[name] !== undefined) made[name] = read(value[name], where + "." + name);
  return made;
};
const time = number(0, 8.64e15), index = number(-1, 1e6);
const chatOf = object({
  id: matching(/^[0-9a-f]{20}$/, "the id of a chat"), at: time, title: text,
  turns: listOf(object({
    ask: text, parent: index, message: index,
    answers: listOf(object({ model: text, text }, {
      thinking: text, thought: time, meta: text, id: text, used: time, open: bool, stopped: bool, edited: bool, error: object({}, { code: text, message: text }),
    })),
  }, { next: index, images: listOf(matching(/^data:image\/jpeg;base64,[A-Za-z0-9+/=]+$/, "an image")), files: listOf(object({ name: text, text }, {})),
    sounds: listOf(object({ name: text, data: matching(/^[A-Za-z0-9+/=]+$/, "a sound"), format: matching(/^(wav|mp3)$/, "wav or mp3") }, {})) })),
}, { named: bool, pinned: bool, next: index, settings: object({}, { system: text, temperature: number(0, 2), max_tokens: number(1, 1e9), effort: text }) });

// Returns a chat whose turns are a tree: each follows an earlier one, and what is shown after a
// turn follows that turn.
function chatFrom(value, where) {
  const chat = chatOf(value, where);
  const follows = (next, i, at) => next === undefined || chat.turns[next]?.parent === i || wrong(at, "a turn after it");
  for (const [i, { parent, message, next }] of chat.turns.entries()) {
    const at = where + ".turns[" + i + "]";
    if (!Number.isInteger(parent) || parent >= i) wrong(at + ".parent", "an earlier turn");
    if (!(message <= i && chat.turns[message]?.parent === parent)) wrong(at + ".message", "a turn in its place");
    follows(next, i, at + ".next");
  }
  if (chat.turns.length === 0) wrong(where + ".turns", "a list with a message");
  if (chat.next === undefined) wrong(where + ".next", "a turn");
  follows(chat.next, -1, where + ".next");
  return chat;
}
