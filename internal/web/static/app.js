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

  // A chart over its own table.
  function charts(root) {
    if (!window.uPlot) return;
    for (const place of root.querySelectorAll(".chart[data-table]")) {
      const table = document.getElementById(place.dataset.table);
      const rows = table ? [...table.tBodies[0].rows] : [];
      if (rows.length < 2) continue;
      const column = (i) => rows.map((row) => Number(row.cells[i].dataset.n || 0));
      const days = rows.map((row) => Date.parse(row.cells[0].textContent.trim() + "T00:00:00Z") / 1000);
      const style = getComputedStyle(document.documentElement);
      const ink = style.getPropertyValue("--pico-color").trim() || "#444";
      const axis = { stroke: ink, grid: { stroke: "rgba(128,128,128,.25)" }, ticks: { stroke: "rgba(128,128,128,.25)" } };
      const options = {
        width: place.clientWidth, height: 180, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "UTC"),
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] } },
        axes: [axis, { ...axis, size: 60 }],
        series: [
          { value: "{YYYY}-{MM}-{DD}" },
          { label: "requests", stroke: style.getPropertyValue("--pico-primary").trim() || "#0172ad", width: 2, points: { size: 5 } },
          { label: "refused", stroke: style.getPropertyValue("--bad").trim(), width: 2, dash: [4, 4], points: { size: 5 } },
        ],
      };
      const chart = new uPlot(options, [days, column(1), column(2)], place);
      addEventListener("resize", () => chart.setSize({ width: place.clientWidth, height: 180 }));
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
  charts(document);
})();
