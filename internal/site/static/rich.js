// Typesets the formulas of answers and colours their code. Chat loads this module with the first
// formula or code, and then the library that draws it. What a library makes is sanitized, and what it
// refuses remains as it was written.
const libraries = {}; // by name
const most = { math: 4000, highlight: 30_000 }; // characters of a formula and of code
const mostElements = 2000; // of a formula

// Draws formulas, code of the class math, and code of the class language-NAME. load returns a promise of
// a library by name; while one is loaded, enrich returns a promise.
export function enrich(codes, load) {
  const waits = [];
  for (const name of ["math", "highlight"]) {
    const mine = codes.filter((code) => code.classList.contains("math") === (name === "math") && code.textContent.length <= most[name] && code.className !== "language-text");
    const draw = () => mine.forEach(name === "math" ? typeset : colour);
    if (mine.length === 0) continue;
    if (libraries[name]) draw();
    else waits.push(load(name).then((loaded) => { libraries[name] = loaded.default; draw(); }));
  }
  return waits.length > 0 ? Promise.all(waits) : undefined;
}

// MathML that Temml writes, without what leads or loads. Addresses are not among the attributes, so
// each value is one of ours.
const formula = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: ["span", "math", "mi", "mn", "mo", "ms", "mtext", "mspace", "mrow", "mfrac", "msqrt", "mroot", "mstyle", "merror", "mpadded", "mphantom", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "mtable", "mtr", "mtd", "menclose"],
  ALLOWED_ATTR: ["class", "style", "display", "displaystyle", "scriptlevel", "mathvariant", "mathcolor", "mathbackground", "mathsize", "stretchy", "fence", "separator", "form", "accent", "accentunder", "lspace", "rspace", "minsize", "maxsize", "movablelimits", "symmetric", "largeop", "width", "height", "depth", "voffset", "linethickness", "columnalign", "columnspacing", "columnlines", "rowspacing", "rowlines", "columnspan", "rowspan", "notation"],
  ALLOWED_URI_REGEXP: /^[^:]*$/,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

function typeset(code) {
  const made = document.createElement("span");
  try {
    libraries.math.render(code.textContent, made, { displayMode: code.classList.contains("display"), throwOnError: true, trust: false, maxSize: [20, 20], maxExpand: 100 });
  } catch {
    return; // it is no formula
  }
  const all = [...made.querySelectorAll("*")];
  if (all.length > mostElements || all.some((e) => /url|\/\*|@/i.test(e.getAttribute("style") ?? ""))) return;
  const drawn = DOMPurify.sanitize(made, formula).firstElementChild;
  if (!drawn.textContent.trim()) return;
  drawn.className = code.className;
  code.replaceWith(drawn);
}

const spans = { RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };

function colour(code) {
  const language = code.className.replace("language-", "");
  if (!libraries.highlight.getLanguage(language)) return;
  const { value } = libraries.highlight.highlight(code.textContent, { language, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(value, spans));
}
