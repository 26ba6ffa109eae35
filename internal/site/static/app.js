// Improvements of the pages. None is required: every page and every form works without
// this script. Pages are painted after it has run, so that what it adds does not move
// the rest.
"use strict";

(() => {
  // Formats a time in the reader's time zone like the hub does in UTC: only the time of day
  // if it is today, and without the year if it is this year.
  function moment(at, complete) {
    const now = new Date(), clock = at.toTimeString().slice(0, 5);
    if (!complete && at.toDateString() === now.toDateString()) return clock;
    const day = at.getDate() + " " + at.toLocaleString("en-US", { month: "short" });
    return (complete || at.getFullYear() !== now.getFullYear() ? day + " " + at.getFullYear() : day) + " " + clock;
  }

  const week = 7 * 86400_000;
  function localise(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      if ("clock" in time.dataset) {
        time.textContent = at.toTimeString().slice(0, 5);
        continue;
      }
      time.title = moment(at, true);
      if (!("ago" in time.dataset) || Math.abs(Date.now() - at) > week) time.textContent = moment(at);
    }
    for (const title of root.querySelectorAll("title[data-at]")) { // of a bar: "14:00 UTC: 3 served"
      title.textContent = moment(new Date(title.dataset.at * 1000)) + title.textContent.slice(title.textContent.indexOf(": "));
    }
  }

  // A field for a time is in the reader's zone, and sends UTC. Without a script it is UTC, and
  // its label has the word.
  for (const mark of document.querySelectorAll("[data-utc]")) {
    const field = mark.parentElement.querySelector("input");
    const at = new Date(field.value + "Z");
    if (field.value) field.value = new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
    field.form.addEventListener("formdata", (event) => {
      if (field.value) event.formData.set(field.name, new Date(field.value).toISOString());
    });
    mark.remove();
  }
  for (const zone of document.querySelectorAll("[data-zone]")) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;

  // Updates relative times each minute while the page is open. The hub uses the same format.
  function age() {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const apart = Math.round((Date.now() - new Date(time.dateTime).getTime()) / 1000);
      const length = Math.abs(apart);
      if (Number.isNaN(apart) || length * 1000 > week) continue;
      const count = (unit) => apart < 0 ? Math.round(length / unit) : Math.floor(length / unit);
      const days = count(86400);
      const text = length < 3600 ? count(60) + " min" : length < 86400 ? count(3600) + " h" : days === 1 ? "1 day" : days + " days";
      time.textContent = length < 60 ? (apart < 0 ? "in a moment" : "just now") : apart < 0 ? "in " + text : text + " ago";
    }
  }
  setInterval(age, 60_000);

  // Adds a button to text that people copy.
  function copies(root) {
    if (!navigator.clipboard) return;
    for (const text of root.querySelectorAll("[data-copy]:not([data-copy=done])")) {
      text.dataset.copy = "done";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small secondary";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy " + (text.getAttribute("aria-label") || "this"));
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(text.textContent.trim());
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
      if (text.matches("pre, .secret")) { // the button is in its corner
        const around = document.createElement("div");
        around.className = "copied";
        text.replaceWith(around);
        around.append(text);
      }
      text.after(button);
    }
  }

  // On a narrow screen each row becomes a card, and each cell gets a label.
  function label(root) {
    for (const table of root.querySelectorAll("table.stack:not(.labelled)")) {
      const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
      for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].forEach((cell, i) => {
          cell.dataset.label = heads[i];
          if (cell.textContent.trim() === "–" && !cell.querySelector("[data-live]")) cell.dataset.none = "";
          if (cell.childNodes.length < 2) return;
          const all = document.createElement("div"); // keeps the text of a cell together
          all.append(...cell.childNodes);
          cell.append(all);
        });
      }
      table.classList.add("labelled");
    }
  }

  // A long list to choose from gets a field that shortens it to the entries with each word, in
  // any order.
  for (const select of document.querySelectorAll("select[data-find]")) {
    if (select.options.length <= 12) continue;
    const all = [...select.options], label = document.createElement("label"), field = document.createElement("input");
    field.type = "search";
    field.autocomplete = "off";
    field.spellcheck = false;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/), chosen = select.selectedOptions[0];
      const found = all.filter((option) => words.every((word) => option.text.toLowerCase().includes(word)));
      select.replaceChildren(...(found.length ? found : [chosen]));
      if (found.length && !found.includes(chosen)) found[0].selected = true;
      else chosen.selected = true;
      select.dispatchEvent(new Event("change", { bubbles: true }));
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return; // it would send the form
      event.preventDefault();
      select.focus();
    });
    label.append("Find " + select.dataset.find + " ", field);
    select.closest("label").before(label);
  }

  // The lines to paste name the model that is chosen, if its id can be pasted.
  document.addEventListener("change", (event) => {
    const chosen = event.target.form?.id === "test" && event.target.selectedOptions?.[0];
    if (!chosen) return;
    for (const place of document.querySelectorAll("[data-model]")) place.textContent = "pastes" in chosen.dataset ? chosen.value : "MODEL";
  });

  // Asks for confirmation before an action that cannot be undone.
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  // Reports whether a field has a value that was not sent yet.
  function typed(field) {
    if (field.type === "hidden") return false;
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.options) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((o) => o.defaultSelected));
    return field.value !== field.defaultValue;
  }

  // Live updates: the hub sends the texts that changed. If other parts of the page changed,
  // they are loaded again, unless a person is using them. Without a stream the page stays
  // as it was loaded.
  function follow(place) {
    const id = place.id;
    const stream = place.dataset.stream;
    const region = () => document.getElementById(id);
    let source = null;
    let shape = place.dataset.shape;
    let asking = false;

    const inUse = () => region().contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
      || [...region().querySelectorAll("input, select, textarea")].some(typed);

    async function refresh() {
      if (asking || shape === region().dataset.shape || inUse()) return;
      asking = true;
      try {
        const response = await fetch(place.dataset.page ?? stream.replace("/live", ""), { headers: { Accept: "text/html", "X-Kith-Refresh": "1" } });
        if (!response.ok || response.redirected) return;
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById(id);
        if (!fresh || inUse()) return;
        const open = [...region().querySelectorAll("details[open]")].map((d) => d.id);
        const focus = region().contains(document.activeElement) ? document.activeElement.id : "";
        region().replaceWith(document.adoptNode(fresh));
        for (const d of open) if (d) document.getElementById(d)?.setAttribute("open", "");
        if (focus) document.getElementById(focus)?.focus();
        localise(fresh);
        copies(fresh);
        label(fresh);
      } catch { /* the next event tries again */ } finally { asking = false; }
    }

    function put(element, [text, tone]) {
      if (element.tagName === "METER") {
        element.value = text || 0;
        return;
      }
      element.textContent = text || element.dataset.idle;
      element.className = tone ? "state " + tone : "";
    }

    function take(event) {
      const told = JSON.parse(event.data);
      if (told.all) {
        for (const element of document.querySelectorAll("[data-live]")) if (!Object.hasOwn(told.texts, element.id)) put(element, []);
      }
      for (const [name, words] of Object.entries(told.texts)) {
        const element = document.getElementById(name);
        if (element && "live" in element.dataset) put(element, words);
      }
      shape = told.shape;
      refresh();
    }

    function turn() { // a hidden page needs no stream, and browsers allow only a few
      if (document.hidden) {
        source?.close();
        source = null;
      } else if (!source || source.readyState === EventSource.CLOSED) {
        source = new EventSource(stream);
        source.addEventListener("message", take);
      }
    }
    document.addEventListener("visibilitychange", turn);
    addEventListener("pagehide", () => { source?.close(); source = null; });
    addEventListener("pageshow", turn);
    document.addEventListener("focusout", () => setTimeout(refresh, 0));
  }
  if (window.EventSource) for (const place of document.querySelectorAll("[data-stream]")) if (place.id) follow(place);

  // A link to a part of the page opens that part.
  function unfold() {
    const at = document.getElementById(location.hash.slice(1)); // :target does not match before the page is loaded
    if (!at) return;
    for (let e = at; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    if (at.tagName === "DETAILS") at.querySelector("input, select, textarea")?.focus();
  }
  addEventListener("hashchange", unfold);
  document.addEventListener("click", (event) => { // the address may not change
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) unfold();
  });
  unfold();

  localise(document);
  copies(document);
  label(document);
})();
