// What Ctrl+K opens: a list of the chats, the models and what can be done, to find by words. Chat
// loads this module when it is opened first.
const field = element("input"), list = element("ul"), none = element("p", "muted", "Nothing matches");
const close = element("button", "plain close", document.querySelector("#shortcuts .close svg").cloneNode(true));
const dialog = element("dialog", "pop models palette", element("div", "tools", field, close), list, none);
const most = 60; // rows
let all = [];

dialog.setAttribute("aria-label", "Find a chat, a model or a command");
dialog.setAttribute("closedby", "any");
close.type = "button";
close.setAttribute("aria-label", "Close");
close.addEventListener("click", () => dialog.close());
field.placeholder = "Find a chat, a model or a command";
document.querySelector(".chat").append(dialog);
const { show } = combobox(field, list, none, "Chats, models and commands");

function draw() {
  const finds = finder(field.value);
  show(all.filter(({ text }) => finds(text)).slice(0, most), 0);
}
field.addEventListener("input", draw);
field.addEventListener("keydown", (event) => { // a search field would be emptied first
  if (event.key !== "Escape") return;
  event.preventDefault();
  dialog.close();
});

// Opens the list of chats, of models, which are options, and of commands, which are functions by
// title. show gets the chat that is chosen, select the id of the model.
export function open({ chats, models, commands, show, select }) {
  const item = (title, kind, text, act, ...dot) => ({
    text, content: [...dot, element("span", "", title), " ", element("small", "muted", kind)],
    choose() {
      dialog.close();
      act();
    },
  });
  const [first, ...others] = Object.entries(commands).map(([title, act]) => item(title, "Command", title.toLowerCase(), act));
  all = [
    first,
    ...chats.map((chat) => item(chat.title || "Chat", "Chat", textOfChat(chat), () => show(chat))),
    ...models.map((option) => item(option.value, "Model · " + option.dataset.state, option.text.toLowerCase(), () => select(option.value), element("span", "dot " + option.dataset.tone))),
    ...others,
  ];
  field.value = "";
  if (!dialog.open) dialog.showModal();
  draw();
}
