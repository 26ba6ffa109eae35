// What the pages do better with a script. Nothing here is needed: every page
// and every form works without it.
"use strict";

(() => {
  const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  // Times in the reader's own zone.
  function localise(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.getTime())) {
        time.title = time.textContent;
        time.textContent = zone.format(at);
      }
    }
  }

  // A button beside what one copies.
  function copies(root) {
    if (!navigator.clipboard) return;
    for (const text of root.querySelectorAll("[data-copy]:not([data-copy=done])")) {
      text.dataset.copy = "done";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small secondary outline";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy " + (text.getAttribute("aria-label") || "this"));
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(text.textContent.trim());
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
      text.after(button);
    }
  }

  // What cannot be undone is asked about once more.
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  // A page that is swapped in part gets the same, unless somebody is typing in it.
  document.addEventListener("htmx:before:swap", (event) => {
    const live = document.querySelector("[data-live]");
    if (live && (live.contains(document.activeElement) || live.querySelector("details[open]"))) event.preventDefault();
  });
  document.addEventListener("htmx:after:swap", () => { localise(document); copies(document); });

  localise(document);
  copies(document);
})();
