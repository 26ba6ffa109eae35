// /usage: lines of the times over each table of hours, days or weeks. The table is what they
// show, to the last digit, for whoever cannot see them.
"use strict";

(() => {
  if (!window.uPlot) return;
  const views = {
    first: { label: "First token, ms", gaps: true, columns: [[6, "p50, ms", "--accent"], [7, "p95, ms", "--warn"]] },
    waits: { label: "Waited, ms", columns: [[5, "waited, ms", "--warn"]] },
    members: { label: "Members active", columns: [[8, "members", "--accent"]] },
  };

  // Every hour, day or week of the span: one that has no row as 0, one without a time as a gap.
  function numbers(place, table, { columns, gaps }) {
    const at = place.dataset.at.split(" ").map(Number);
    const rows = new Map([...table.tBodies[0].rows].map((row) => [Number(row.cells[0].dataset.at), row]));
    return [at, ...columns.map(([column]) => at.map((step) => Number(rows.get(step)?.cells[column].dataset.n ?? 0) || (gaps ? null : 0)))];
  }

  function draw(place, table, view) {
    // The value of a token can be light-dark(), which a canvas does not take: an element's
    // colour is resolved.
    const colour = (name) => {
      place.style.color = `var(${name})`;
      const resolved = getComputedStyle(place).color;
      place.style.color = "";
      return resolved;
    };
    const lines = "rgba(128, 128, 128, 0.25)";
    const axis = { stroke: colour("--ink"), grid: { stroke: lines, width: 1 }, ticks: { stroke: lines, width: 1 } };
    const hourly = place.dataset.by === "hour", unit = hourly ? 3600 : 86400;
    // Hours are of the reader's zone; days and weeks of the page's.
    const local = (at) => hourly ? new Date(at * 1000) : uPlot.tzDate(new Date(at * 1000), place.dataset.zone);
    const day = (at) => local(at).getDate() + " " + local(at).toLocaleString("en-US", { month: "short" });
    const clock = (at) => local(at).toTimeString().slice(0, 5);
    const name = (at) => hourly ? day(at) + " " + clock(at) : day(at);
    const brief = hourly ? clock : day;
    const short = new Intl.NumberFormat(undefined, { notation: "compact" });
    const data = numbers(place, table, view);
    return new uPlot({
      width: Math.max(place.clientWidth, 200), height: 200, tzDate: local,
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] } },
      axes: [{ ...axis, incrs: (hourly ? [1, 2, 6, 12, 24, 48] : [1, 2, 7, 14, 30, 60, 120]).map((n) => n * unit), values: (_, all) => all.map(brief) }, { ...axis, size: 56, values: (_, all) => all.map((n) => short.format(n)) }],
      series: [
        { label: place.dataset.by, value: (_, at) => at == null ? "" : name(at) },
        ...view.columns.map(([, label, name], i) => ({ label, value: (_, n) => n?.toLocaleString() ?? "", stroke: colour(name), width: 2, dash: i ? [6, 4] : [], points: { show: data[0].length < 40, size: 5 } })),
      ],
    }, data, place);
  }

  for (const place of document.querySelectorAll(".chart[data-table]")) {
    const table = document.getElementById(place.dataset.table);
    if (!table) continue;
    const label = document.createElement("label");
    const choice = document.createElement("select");
    for (const [name, view] of Object.entries(views)) {
      if (view.columns.at(-1)[0] < table.tHead.rows[0].cells.length) choice.add(new Option(view.label, name));
    }
    label.className = "narrow";
    label.append("Chart of ", choice);
    place.before(label);
    place.setAttribute("role", "img");
    let chart = null;
    const again = () => {
      chart?.destroy();
      const view = views[choice.value];
      chart = draw(place, table, view);
      place.setAttribute("aria-label", `${view.label} by ${place.dataset.by}, as in the table below`);
    };
    choice.addEventListener("change", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    new ResizeObserver(() => {
      const width = Math.max(place.clientWidth, 200);
      if (chart && chart.width !== width) chart.setSize({ width, height: 200 });
    }).observe(place);
    again();
  }
})();
