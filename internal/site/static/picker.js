// Shows a select of models as a button with a list, which can be searched and has the state,
// the owner and the speed of each. The select remains the field of its form.
"use strict";

const modelPicker = (select) => {
  const label = select.closest("label"), name = label.firstElementChild.textContent;
  let found = [], active = -1;

  const button = element("button", "secondary picker");
  const field = element("input"), list = element("ul"), none = element("p", "muted", "No models match");
  const panel = element("div", "pop models", field, list, none);
  button.type = "button";
  button.id = select.id + "-button";
  button.setAttribute("aria-haspopup", "dialog");
  panel.popover = "auto";
  panel.id = select.id + "-list";
  panel.setAttribute("role", "dialog");
  panel.setAttribute("aria-label", name);
  field.type = "search";
  field.autofocus = true; // when the list opens
  field.autocomplete = "off";
  field.spellcheck = false;
  field.placeholder = "Find a model";
  for (const [key, value] of Object.entries({ role: "combobox", "aria-label": "Find a model", "aria-expanded": "true", "aria-autocomplete": "list", "aria-controls": select.id + "-options" })) field.setAttribute(key, value);
  list.id = select.id + "-options";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", name);
  button.popoverTargetElement = panel;

  const facts = ({ whose, state, speed }) => [whose, state, speed].filter(Boolean).join(" · ");
  const dot = (tone) => element("span", "dot " + (tone ?? ""));

  function showChosen() {
    const chosen = select.selectedOptions[0];
    button.replaceChildren(element("span", "unseen", name + ": "));
    if (chosen?.dataset.state) button.append(dot(chosen.dataset.tone));
    button.append(element("span", "", chosen?.value || chosen?.text || "Choose a model"));
    const more = chosen ? facts(chosen.dataset) : "";
    if (more) button.append(" ", element("small", "muted", more));
    button.title = (chosen?.value ?? "") + (more ? " (" + more + ")" : "");
  }

  function activate(i) {
    list.children[active]?.classList.remove("active");
    active = Math.max(0, Math.min(i, found.length - 1));
    const item = list.children[active];
    field.setAttribute("aria-activedescendant", item?.id ?? "");
    item?.classList.add("active");
    item?.scrollIntoView({ block: "nearest" });
  }

  // Lists the models with each word that was typed, in any order.
  function show() {
    const finds = finder(field.value);
    found = [...select.options].filter((option) => finds(option.text.toLowerCase()));
    list.replaceChildren(...found.map((option, i) => {
      const item = element("li", "", element("span", "", option.value || option.text));
      if (option.dataset.state) item.prepend(dot(option.dataset.tone));
      const more = facts(option.dataset);
      if (more) item.append(" ", element("small", "muted", more));
      item.id = select.id + "-" + i;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(option.selected));
      item.addEventListener("click", () => choose(option));
      return item;
    }));
    list.hidden = found.length === 0;
    none.hidden = found.length > 0;
    active = -1;
    activate(field.value ? 0 : found.findIndex((option) => option.selected));
  }

  function choose(option) {
    select.value = option.value;
    select.dispatchEvent(new Event("change", { bubbles: true }));
    panel.hidePopover();
  }

  // The states change while the list is open.
  let source = null;
  function listen() {
    if (!select.dataset.live || !window.EventSource) return;
    source = new EventSource(select.dataset.live);
    source.addEventListener("message", ({ data }) => {
      const { shape, texts } = JSON.parse(data);
      if (shape !== select.dataset.shape) return; // other models than those of this page
      for (const option of select.options) {
        const now = texts["now-" + option.dataset.n];
        if (now) [option.dataset.state, option.dataset.tone] = now;
      }
      const at = active;
      show();
      activate(at);
      showChosen();
    });
  }

  // Before the list is shown, so that nothing is lost that is typed at once.
  panel.addEventListener("beforetoggle", ({ newState }) => {
    if (newState !== "open") return;
    field.value = "";
    show();
  });
  panel.addEventListener("toggle", ({ newState }) => {
    source?.close();
    source = null;
    if (newState !== "open") return;
    activate(active); // it can be scrolled to now
    listen();
  });
  field.addEventListener("input", show);
  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) activate(active + step);
    else if (event.key === "Enter" && found[active]) choose(found[active]);
    else return;
    event.preventDefault();
  });
  select.addEventListener("change", showChosen);
  select.hidden = true;
  label.after(button, panel);
  label.hidden = true;
  showChosen();
  return button;
};
