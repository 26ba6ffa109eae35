// The settings of a chat: {system, temperature, max_tokens, effort}. What is not set is left to
// the model.
"use strict";

// Returns show, which shows the settings of a chat, and parameters, which returns them as members
// of a call of one model. models returns the options of the models that answer. changed gets the
// settings after each change.
const chatSettings = (models, changed) => {
  const at = (id) => document.getElementById(id);
  const fields = { system: at("system"), temperature: at("temperature"), max_tokens: at("length"), effort: at("effort") };
  const thinks = (option) => option?.dataset.thinks !== undefined;
  let now = {};

  function mark() {
    at("set-chat").classList.toggle("on", Object.keys(now).length > 0);
    at("set-chat").title = Object.keys(now).length > 0 ? "Chat settings (changed)" : "Chat settings";
    fields.effort.closest("label").hidden = !models().some(thinks);
  }

  function read() {
    now = {};
    for (const [name, field] of Object.entries(fields)) {
      const valid = field.checkValidity();
      field.setAttribute("aria-invalid", String(!valid));
      field.nextElementSibling?.toggleAttribute("hidden", valid);
      if (valid && field.value.trim()) now[name] = field.type === "number" ? Number(field.value) : field.value;
    }
    mark();
    changed(now);
  }
  for (const field of Object.values(fields)) field.addEventListener("input", read);
  at("set-chat").hidden = false;

  return {
    show(settings) {
      now = { ...settings };
      for (const [name, field] of Object.entries(fields)) {
        field.value = now[name] ?? "";
        field.setAttribute("aria-invalid", "false");
        field.nextElementSibling?.setAttribute("hidden", "");
      }
      mark();
    },
    mark,
    parameters(option) {
      const { effort, ...all } = now;
      if (effort && thinks(option)) all.reasoning_effort = effort;
      return all;
    },
  };
};
