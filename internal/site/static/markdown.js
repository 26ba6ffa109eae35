// Renders answers in Markdown. HTML in them is shown as text, an image becomes a link, and
// only links to the web and to e-mail addresses are kept. DOMPurify then removes everything
// that is not in a list of plain elements. A formula is code of the class math, until rich.js
// typesets it. Chat loads this module, and the libraries marked and DOMPurify before it, with the first answer.
const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (c) => escapes[c]);
const parser = new marked.Marked({
  gfm: true,
  renderer: {
    html: (token) => (token.block ? "<p>" + escape(token.raw) + "</p>" : escape(token.raw)),
    image: (token) => '<a href="' + escape(token.href) + '">' + escape(token.text || token.href) + "</a>",
    checkbox: (token) => (token.checked ? "☑ " : "☐ "),
    code: (token) => '<pre><code class=\'language-' + (token.lang || "").replace(/[^\w+#.-].*/s, "") + "'>" + escape(token.text) + "</code></pre>",
  },
});
// Formulas are between $ or \( \), and between $$ or \[ \] if they are displayed. A $ beside a space
// inside, or a letter or digit outside, is a currency.
const inline = [[/^\$\$((?:\\.|[^\\$])+)\$\$/, true], [/^\\\[([^]+?)\\\]/, true], [/^\$(?!\s)((?:\\.|[^\\$\n])+)(?<!\s)\$(?!\w)/, false], [/^\\\(([^]+?)\\\)/, false]];
const blocks = [[/^ {0,3}\$\$((?:(?!\n\s*\n|\$\$)[^])+)\$\$[ \t]*(?:\n|$)/, true], [/^ {0,3}\\\[((?:(?!\n\s*\n|\\\])[^])+)\\\][ \t]*(?:\n|$)/, true]];
const formula = (level, forms, begin) => ({
  name: level + "-formula",
  level,
  start: (src) => begin.exec(src)?.index,
  tokenizer(src) {
    for (const [form, display] of forms) {
      const found = form.exec(src);
      if (found) return { type: level + "-formula", raw: found[0], text: found[1].trim(), display };
    }
    return undefined;
  },
  renderer({ text, display }) {
    const code = "<code class='math" + (display ? " display" : "") + "'>" + escape(text) + "</code>";
    return level === "block" ? "<p>" + code + "</p>" : code;
  },
});
parser.use({ extensions: [formula("block", blocks, /\n {0,3}(?:\$\$|\\\[)/), formula("inline", inline, /(?<![\w\\$])\$|\\[([]/)] });

const plain = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: ["p", "br", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "table", "thead", "tbody", "tr", "th", "td", "a"],
  ALLOWED_ATTR: ["href", "start", "align", "class"],
  ADD_URI_SAFE_ATTR: ["start", "align"], // these are no addresses, which ALLOWED_URI_REGEXP is for
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

function copyButton(pre) {
  const button = element("button", "small plain", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", "Copy the code");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

// Returns the nodes of some blocks.
function draw(tokens) {
  const drawn = DOMPurify.sanitize(parser.parser(tokens), plain);
  for (const link of drawn.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const pre of drawn.querySelectorAll("pre")) {
    const block = document.createElement("div");
    const bar = document.createElement("div");
    const name = document.createElement("span");
    block.className = "block";
    name.className = "muted";
    name.textContent = (pre.firstElementChild?.className ?? "").replace("language-", "") || "text";
    pre.tabIndex = 0;
    pre.setAttribute("role", "group");
    pre.setAttribute("aria-label", "Code");
    bar.append(name);
    if (navigator.clipboard) bar.append(copyButton(pre));
    pre.replaceWith(block);
    block.append(bar, pre);
  }
  return [...drawn.childNodes];
}

// Has rich.js typeset the formulas and colour the code of complete blocks. Returns a promise if a
// part has to be loaded for it.
let rich = null;
function enrich(nodes, load) {
  const codes = nodes.flatMap((node) => (node.nodeType === 1 ? [...node.querySelectorAll("code.math, pre > code[class]")] : []));
  if (codes.length === 0) return undefined;
  if (rich) return rich.enrich(codes, load);
  return load("rich").then((loaded) => {
    rich = loaded;
    return rich.enrich(codes, load);
  }).catch(() => {}); // they are shown as they were written
}

// One streamed answer. Complete blocks are drawn once; only the last one, which may still
// change, is drawn again.
export class Answer {
  // load returns a promise of a part of the page by name.
  constructor(into, load) {
    this.into = into;
    this.load = load;
    this.text = "";
    this.read = 0; // number of characters sent to the lexer, for a test
    this.from = 0; // start of the last block
    this.last = []; // its nodes
    this.links = {};
    this.raw = null; // the element with the original text
    this.rich = undefined; // a promise while a part is loaded
  }

  add(text) { this.text += text.replaceAll("\r", ""); }

  lex(text) {
    const lexer = new marked.Lexer(parser.defaults);
    lexer.tokens.links = this.links;
    this.read += text.length;
    return lexer.lex(text);
  }

  // Draws what has arrived. An answer that is nested too deeply for the parser is shown as text.
  draw() {
    if (!this.raw) {
      try {
        this.drawBlocks();
        return;
      } catch {
        this.raw = document.createElement("pre");
        this.into.replaceChildren(this.raw);
      }
    }
    this.raw.textContent = this.text;
  }

  drawBlocks() {
    const tokens = this.lex(this.text.slice(this.from));
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === "space") last--;
    const open = tokens[last];
    if (last === 0 && open.type === "code" && this.code && this.lang === open.lang && open.text.startsWith(this.code.data)) {
      this.code.appendData(open.text.slice(this.code.data.length));
    } else if (tokens.length > 0) {
      for (const node of this.last) node.remove();
      for (const token of tokens.slice(0, last)) this.from += token.raw.length;
      const complete = draw(tokens.slice(0, last));
      this.into.append(...complete);
      this.rich = enrich(complete, this.load) ?? this.rich;
      this.last = draw(tokens.slice(last));
      this.into.append(...this.last);
      this.code = null;
      if (open.type === "code") {
        this.lang = open.lang;
        this.code = this.last[0]?.querySelector?.("code")?.firstChild ?? null;
      }
    }
  }

  // Called when the answer is complete. A link may be defined after its use, so an answer
  // with definitions is drawn again.
  end() {
    this.draw();
    if (this.raw) return;
    if (Object.keys(this.links).length > 0) this.into.replaceChildren(...this.last = draw(this.lex(this.text)));
    this.code = null;
    this.rich = Promise.all([this.rich, enrich(this.last, this.load)]);
  }
}
