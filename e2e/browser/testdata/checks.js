// Checks of a page, each a list of what is wrong with it. They run in the page itself.
var checks = {
  // name is an element as a person finds it.
  name(e) {
    const words = (e.getAttribute("aria-label") || e.textContent || e.name || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + " \"" + words + "\"";
  },

  // stops are the elements that Tab reaches: of a dialog alone, while one is open.
  stops() {
    const within = document.querySelector("dialog:modal") ?? document;
    return [...within.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter((e) =>
      e.tabIndex >= 0 && !e.disabled && e.type !== "hidden" && e.checkVisibility({ visibilityProperty: true }));
  },

  // ring is what may show the focus.
  ring(e) {
    const style = getComputedStyle(e);
    return [style.outlineStyle === "none" ? "" : style.outlineWidth + style.outlineStyle + style.outlineColor, style.boxShadow].join();
  },

  // focus finds the stops that look the same with the focus and without. A key has to be
  // pressed before, so that the browser shows the focus.
  focus() {
    const before = document.activeElement;
    const wrong = [];
    before?.blur();
    for (const e of this.stops()) {
      const plain = this.ring(e);
      e.focus({ preventScroll: true });
      if (document.activeElement !== e) wrong.push("takes no focus: " + this.name(e));
      else if (this.ring(e) === plain) wrong.push("does not show the focus: " + this.name(e));
      e.blur();
    }
    if (before && !before.matches(".skip")) before.focus({ preventScroll: true });
    return wrong;
  },

  // inText reports whether a link is part of a sentence.
  inText(e) {
    if (e.tagName !== "A" || getComputedStyle(e).display !== "inline") return false;
    let block = e.parentElement;
    while (getComputedStyle(block).display === "inline") block = block.parentElement;
    const words = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
      const of = words.currentNode.parentElement;
      if (/[\p{L}\p{N}]/u.test(words.currentNode.data) && !of.closest("a, svg")) return true;
    }
    return false;
  },

  // targets finds what is too small for a finger or an unsteady hand: 24 pixels, and on a
  // phone 44 for navigation and buttons.
  targets(phone) {
    const wrong = [];
    for (const e of document.querySelectorAll("a[href], button, input, select, textarea, summary")) {
      if (e.type === "hidden" || !e.checkVisibility({ visibilityProperty: true }) || this.inText(e)) continue;
      const label = /^(checkbox|radio)$/.test(e.type) && e.closest("label");
      const { width, height, right } = (label || e).getBoundingClientRect();
      if (right <= 0) continue; // in sight with the focus alone
      const least = phone && (e.closest("nav, body > header") || e.matches("button, .button, summary, [type=file]")) ? 44 : 24;
      if (Math.min(width, height) < least - 0.5) wrong.push(`${Math.round(width)} × ${Math.round(height)} pixels, want ${least}: ` + this.name(e));
    }
    return wrong;
  },

  // breaks finds words of code in a sentence that go on in the next line.
  breaks() {
    return [...document.querySelectorAll("article :not(pre) > code > span")].filter((e) => e.getClientRects().length > 1).map((e) => "goes on in the next line: " + e.textContent);
  },

  // cut finds tables of which a part is out of sight, except in the documentation.
  cut() {
    return [...document.querySelectorAll(".scroll:not(.documentation *)")].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) =>
      `${e.scrollWidth} pixels wide in ${e.clientWidth}: ` + this.name(e));
  },

  // rows finds rows of a list that are more than a few lines on a phone: the state is beside the
  // name, and half of the rows are low: five lines, since limits are a sentence.
  rows() {
    const rows = [...document.querySelectorAll(".list tbody tr")];
    const wrong = rows.filter((row) => {
      const state = row.querySelector(".status")?.getBoundingClientRect(), name = row.cells[0].getBoundingClientRect();
      return state && (state.top >= name.bottom || state.left < name.right - 1);
    }).map((row) => "the state is not beside the name: " + this.name(row));
    const tall = rows.map((row) => row.offsetHeight).sort((a, b) => a - b)[rows.length >> 1];
    if (tall > 120) wrong.push(`half of the rows are over ${tall} pixels high`);
    return wrong;
  },

  // spills finds text of a picture that leaves its box, left or right.
  spills() {
    return [...document.querySelectorAll("main svg text")].filter((e) => {
      const text = e.getBBox(), svg = e.parentElement.closest("svg");
      const box = svg.viewBox.baseVal?.width ? svg.viewBox.baseVal : { x: 0, width: svg.width.baseVal.value };
      return text.width > 0 && (text.x < box.x - 1 || text.x + text.width > box.x + box.width + 1);
    }).map((e) => "leaves its box: " + this.name(e));
  },

  // weight finds a page that is too heavy: what it and its parts take on the wire,
  // in KiB, also where the browser had them already.
  weight(page, scripts) {
    let all = performance.getEntriesByType("navigation")[0].encodedBodySize;
    let code = 0;
    for (const part of performance.getEntriesByType("resource")) {
      if (/^(fetch|xmlhttprequest|other|eventsource)$/.test(part.initiatorType)) continue;
      all += part.encodedBodySize;
      if (part.initiatorType === "script") code += part.encodedBodySize;
    }
    const wrong = [];
    if (all > page * 1024) wrong.push(`${Math.round(all / 1024)} KiB, want ${page} at most`);
    if (code > scripts * 1024) wrong.push(`scripts of ${Math.round(code / 1024)} KiB, want ${scripts} at most`);
    return wrong;
  },
};
