// What the scripts of Chat share.
"use strict";

// Returns an element with this content: texts and elements.
const element = (kind, className, ...content) => {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...content);
  return made;
};

// Returns a function that reports whether a text in lower case has each word of a search, in
// any order.
const finder = (search) => {
  const words = search.toLowerCase().split(/\s+/);
  return (text) => words.every((word) => text.includes(word));
};

// Makes a field and a list a combobox: the arrows move through the list, and Enter chooses. none is
// shown while the list is empty. Returns show, which gets items {content, selected, choose} and
// the index of the active one, activate, which gets another index, and active, which returns it.
const combobox = (field, list, none, name) => {
  let items = [], active = -1;
  list.id ||= "options-" + document.querySelectorAll("[role=listbox]").length;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", name);
  field.type = "search";
  field.autofocus = true; // when it is shown
  field.autocomplete = "off";
  field.spellcheck = false;
  for (const [key, value] of Object.entries({ role: "combobox", "aria-label": field.placeholder, "aria-expanded": "true", "aria-autocomplete": "list", "aria-controls": list.id })) field.setAttribute(key, value);

  function activate(i) {
    list.children[active]?.classList.remove("active");
    active = Math.max(0, Math.min(i, items.length - 1));
    const item = list.children[active];
    field.setAttribute("aria-activedescendant", item?.id ?? "");
    item?.classList.add("active");
    item?.scrollIntoView({ block: "nearest" });
  }

  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) activate(active + step);
    else if (event.key === "Enter" && items[active]) items[active].choose();
    else return;
    event.preventDefault();
  });

  function show(now, i) {
    items = now;
    list.replaceChildren(...items.map(({ content, selected, choose }, n) => {
      const item = element("li", "", ...content);
      item.id = list.id + "-" + n;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(Boolean(selected)));
      item.addEventListener("click", choose);
      return item;
    }));
    list.hidden = items.length === 0;
    none.hidden = items.length > 0;
    activate(i);
  }
  return { show, activate, active: () => active };
};

// Returns a file in a fence that is longer than any in it, below its name.
const fenced = ({ name, text }) => {
  const fence = "\x60".repeat(Math.max(3, ...[...text.matchAll(/\x60+/g)].map(([ticks]) => ticks.length + 1)));
  return name + "\n" + fence + "\n" + text.replace(/\n$/, "") + "\n" + fence;
};
