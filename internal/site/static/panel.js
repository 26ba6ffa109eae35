// Panels at the side of a page, and a search for many checkboxes. app.js calls panels with what
// it shares: load gets an element of another page, ready prepares it, and typed reports whether a
// field has a value that was not sent yet.
"use strict";

globalThis.panels = ({ load, ready, typed, finder }) => {
  // Many checkboxes get a field that shortens them in the same way; what is checked stays.
  function choices(root) {
    for (const choice of root.querySelectorAll("fieldset[data-find]")) {
      const labels = [...choice.querySelectorAll("label:has([type=checkbox])")], field = document.createElement("input");
      if (labels.length <= 8) continue;
      field.type = "search";
      field.setAttribute("aria-label", field.placeholder = "Find " + choice.dataset.find);
      field.addEventListener("input", () => {
        const finds = finder(field.value);
        for (const label of labels) label.hidden = !label.control.checked && !finds(label.textContent);
      });
      field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); }); // it would send the form
      labels[0].parentElement.before(field);
    }
  }

  // A link with data-panel leads to a page with a panel. It opens at the side of the page that the
  // link is on, which has that address while it is open.
  function showPanel(panel, back) {
    panel.removeAttribute("open");
    panel.showModal();
    const close = (event) => {
      event?.preventDefault();
      panel.close();
    };
    panel.querySelector("[data-close]").addEventListener("click", close);
    panel.addEventListener("click", (event) => { // beside the panel
      if (event.target === panel && event.clientX < panel.getBoundingClientRect().left && ![...panel.querySelectorAll("input, select, textarea")].some(typed)) close();
    });
    panel.addEventListener("close", () => {
      panel.remove();
      if (history.state?.panel) history.back();
      else history.replaceState(null, "", back);
    });
  }

  async function openPanel(address) {
    const back = location.href, at = new URL(address);
    if (at.pathname === location.pathname) { // the list under the panel stays as it was asked for
      for (const [name, value] of new URLSearchParams(location.search)) if (!at.searchParams.has(name)) at.searchParams.set(name, value);
    }
    address = at.href;
    let panel = null;
    try { panel = await load(address, "panel"); } catch { /* without a connection the browser reports it */ }
    if (!panel) return location.assign(address);
    document.getElementById("panel")?.remove();
    document.querySelector("main").append(document.adoptNode(panel));
    ready(panel);
    choices(panel);
    history.pushState({ panel: true }, "", address);
    showPanel(panel, back);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-panel]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    openPanel(link.href);
  });
  addEventListener("popstate", () => {
    const panel = document.getElementById("panel");
    if (history.state?.panel) location.reload(); // Forward: the page has it
    else if (panel?.open) panel.close();
  });
  {
    const panel = document.getElementById("panel");
    if (panel) showPanel(panel, panel.querySelector("[data-close]").href);
  }

  choices(document);
  return openPanel;
};
