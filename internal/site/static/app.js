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
  // The hub sums usage by the days of the reader's zone.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !document.cookie.includes(`kith-zone=${zone}`)) document.cookie = `kith-zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  for (const place of document.querySelectorAll("span[data-zone]")) place.textContent = zone;

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

  // On a narrow screen each row becomes a card, or some lines in a list: each cell gets the
  // label and the classes of its column.
  function label(root) {
    for (const table of root.querySelectorAll("table.stack:not(.labelled)")) {
      const heads = [...table.querySelectorAll("thead th")];
      for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].forEach((cell, i) => {
          cell.dataset.label = heads[i].textContent;
          cell.classList.add(...heads[i].classList);
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

  // Returns a function that reports whether a text has each word of a search, in any order.
  function finder(search) {
    const words = search.toLowerCase().split(/\s+/);
    return (text) => words.every((word) => text.toLowerCase().includes(word));
  }

  // A long list to choose from gets a field that shortens it to the entries that it finds.
  for (const select of document.querySelectorAll("select[data-find]")) {
    if (select.options.length <= 12) continue;
    const all = [...select.options], label = document.createElement("label"), field = document.createElement("input");
    field.type = "search";
    field.autocomplete = "off";
    field.spellcheck = false;
    field.addEventListener("input", () => {
      const finds = finder(field.value), chosen = select.selectedOptions[0];
      const found = all.filter((option) => finds(option.text));
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

  // Asks for confirmation before an action that cannot be undone, and sends a form once
  // at a double click.
  const sent = new WeakMap();
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    const again = event.target.method === "post" && event.timeStamp - sent.get(event.target) < 1000;
    if (again || question && !confirm(question)) event.preventDefault();
    else sent.set(event.target, event.timeStamp);
  });

  // Reports whether a field has a value that was not sent yet.
  function typed(field) {
    if (field.type === "hidden") return false;
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.options) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((o) => o.defaultSelected));
    return field.value !== field.defaultValue;
  }

  // Does to a new part of the page what is done to the page.
  function ready(part) {
    localise(part);
    copies(part);
    label(part);
  }

  // Loads the element with an id of the page at an address; null: there is none.
  async function load(address, id, signal) {
    const response = await fetch(address, { headers: { Accept: "text/html", "X-Kith-Refresh": "1" }, signal });
    if (!response.ok || response.redirected) return null;
    return new DOMParser().parseFromString(await response.text(), "text/html").getElementById(id);
  }

  // Replaces the element with the id of a fresh one, and keeps the focus and what is open.
  function replace(fresh) {
    const old = document.getElementById(fresh.id), at = document.activeElement;
    const open = [...old.querySelectorAll("details[open]")].map((d) => d.id);
    const mark = old.contains(at) && ["id", "href", "popovertarget"].find((name) => at.hasAttribute(name));
    const same = mark && `${at.localName}[${mark}="${CSS.escape(at.getAttribute(mark))}"]`;
    old.replaceWith(document.adoptNode(fresh));
    for (const d of open) if (d) document.getElementById(d)?.setAttribute("open", "");
    ready(fresh);
    if (same) fresh.querySelector(same)?.focus({ preventScroll: true });
  }

  // The address of a list as it is shown; undefined: the element is none.
  function listAddress(id) {
    const form = document.getElementById(id + "-find");
    if (!form) return undefined;
    const at = new URL(form.action);
    if (at.pathname === location.pathname) at.search = location.search; // else the page is the answer to a form
    return at;
  }

  // A list has an address for each search, state, order and page. The script asks for the
  // list's part of that page as a person types or follows a link of the list.
  function list(place) {
    const id = place.id, form = document.getElementById(id + "-find");
    let asking = null;

    async function ask(address) {
      asking?.abort();
      asking = new AbortController();
      const { signal } = asking;
      history.replaceState(null, "", address);
      try {
        const fresh = await load(address, id, signal);
        if (signal.aborted) return;
        if (!fresh) return location.replace(address); // another page: of a call, or to sign in
        replace(fresh);
        found.textContent = fresh.querySelector("[data-found]")?.textContent ?? "";
      } catch { /* aborted, or without a connection: the next key asks again */ }
    }

    // The address with what the form holds now. It begins with the first page.
    function typed(address) {
      for (const [name, value] of new FormData(form)) {
        if (form.elements[name].type === "hidden") continue;
        if (value.trim()) address.searchParams.set(name, value.trim());
        else address.searchParams.delete(name);
      }
      return address;
    }
    function first(address) {
      for (const name of ["page", "before"]) address.searchParams.delete(form.dataset.prefix + name);
      return address;
    }

    const found = document.createElement("span"); // what a screen reader announces
    found.className = "unseen";
    found.setAttribute("role", "status");
    form.append(found);
    form.addEventListener("input", () => ask(typed(first(listAddress(id)))));
    form.addEventListener("submit", (event) => { event.preventDefault(); ask(typed(first(listAddress(id)))); });
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.(".chips a, thead a, .pages a");
      if (!link || !document.getElementById(id).contains(link) || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      ask(typed(new URL(link.href)));
      if (link.matches(".pages a")) document.getElementById(id).scrollIntoView({ block: "nearest" });
    });
  }

  // How long after a state of a row changed a list is sorted and counted again, in ms.
  const settle = 3000;

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
    let moved = false; // states of rows changed, and so the order and the numbers of a list
    let settling = 0;

    const inUse = () => region().querySelector(":popover-open") !== null
      || region().contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
      || [...region().querySelectorAll("input, select, textarea")].some(typed);

    async function refresh() {
      if (asking || (shape === region().dataset.shape && (!moved || settling)) || inUse()) return;
      asking = true;
      const address = listAddress(id)?.href ?? place.dataset.page ?? stream.replace("/live", "");
      try {
        const fresh = await load(address, id);
        if (!fresh || inUse() || address !== (listAddress(id)?.href ?? address)) return;
        moved = false;
        replace(fresh);
      } catch { /* the next event tries again */ } finally { asking = false; }
    }

    function put(element, [text, tone]) {
      if (element.tagName === "METER") {
        element.value = text || 0;
        return;
      }
      element.textContent = text || element.dataset.idle;
      element.setAttribute("class", tone ? "state " + tone : ""); // an SVG element has no className to set
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
      const states = region().dataset.list;
      if (states && !told.all && Object.keys(told.texts).some((name) => name.startsWith(states))) {
        moved = true;
        settling ||= setTimeout(() => { settling = 0; refresh(); }, settle);
      }
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
    for (const end of ["focusout", "toggle"]) document.addEventListener(end, () => setTimeout(refresh, 0), true);
  }
  for (const place of document.querySelectorAll("[data-list]")) if (document.getElementById(place.id + "-find")) list(place);
  if (window.EventSource) for (const place of document.querySelectorAll("[data-stream]")) if (place.id) follow(place);

  const openPanel = globalThis.panels?.({ load, ready, typed, finder }); // pages with panels have panel.js

  // A link to a part of the page opens that part.
  function unfold() {
    const at = document.getElementById(location.hash.slice(1)); // :target does not match before the page is loaded
    if (!at) return;
    if ("panel" in at.dataset) return openPanel?.(at.href);
    if ("moved" in at.dataset) return location.replace(at.href.includes("#") ? at.href : at.href + location.hash);
    for (let e = at; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    if (at.tagName === "DETAILS") at.querySelector("input, select, textarea")?.focus();
  }
  addEventListener("hashchange", unfold);
  document.addEventListener("click", (event) => { // the address may not change
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) unfold();
  });
  unfold();

  ready(document);
})();
