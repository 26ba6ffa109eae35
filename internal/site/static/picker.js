// Shows a select of models as a button with a list, which can be searched and has the state,
// the owner and the speed of each. The select remains the field of its form.
"use strict";

const modelPicker = (select) => {
  const label = select.closest("label"), name = label.firstElementChild.textContent;

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
  field.placeholder = "Find a model";
  list.id = select.id + "-options";
  button.popoverTargetElement = panel;
  const choices = combobox(field, list, none, name);

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

  // Lists the models with each word that was typed, in any order.
  function show(active) {
    const finds = finder(field.value);
    const found = [...select.options].filter((option) => finds(option.text.toLowerCase()));
    choices.show(found.map((option) => {
      const more = facts(option.dataset);
      return {
        content: [
          ...(option.dataset.state ? [dot(option.dataset.tone)] : []), element("span", "", option.value || option.text),
          ...(more ? [" ", element("small", "muted", more)] : []),
        ],
        selected: option.selected, choose: () => choose(option),
      };
    }), active ?? (field.value ? 0 : found.findIndex((option) => option.selected)));
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
      show(choices.active());
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
    choices.activate(choices.active()); // it can be scrolled to now
    listen();
  });
  field.addEventListener("input", () => show());
  select.addEventListener("change", showChosen);
  select.hidden = true;
  label.after(button, panel);
  label.hidden = true;
  showChosen();
  return button;
};
