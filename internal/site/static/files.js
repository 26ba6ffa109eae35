// Reads what is added to a message. Chat loads this module with the first file. Nothing leaves the
// browser before the message is sent.
const mostText = 512 << 10; // bytes of a text file, and characters of a PDF file's text
const mostPDF = 32 << 20; // bytes
const mostPages = 500;
const mostSound = 4 << 20; // bytes

// Returns what is added of a file: {parts, note}. A part is {url} of an image, made small enough for a
// call, {name, text} of a text or PDF file, or {name, data, format} of a sound. note is a sentence about it.
// takes has the model, whether it takes images and audio, and how many images the message may have yet. pdf
// loads pdf.js, whose worker has the address that worker returns. The error's message is for the member.
export async function read(file, takes, pdf, worker) {
  const name = file.name || "the file", fail = (why) => { throw new Error(name + " " + why); };
  const refuse = (kind) => fail("cannot be added: " + takes.model + " takes no " + kind + ". Choose a model that does.");
  const is = (kind, ending) => file.type.startsWith(kind) || ending.test(name);
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!takes.images) refuse("images");
    try {
      return { parts: [{ url: await small(file) }] };
    } catch { fail("cannot be read as an image."); }
  }
  if (is("audio/", /\.(wav|mp3)$/i)) {
    if (!takes.audio) refuse("audio");
    if (file.size > mostSound) fail("is " + size(file.size) + "; an audio file may have " + size(mostSound) + ".");
    const bytes = new Uint8Array(await file.arrayBuffer()), format = formatOf(bytes);
    if (!format) fail("is neither WAV nor MP3.");
    return { parts: [{ name, data: base64(bytes), format }] };
  }
  if (is("application/pdf", /\.pdf$/i)) {
    if (file.size > mostPDF) fail("is " + size(file.size) + "; a PDF file may have " + size(mostPDF) + ".");
    return readPDF(file, takes, await pdf(), worker(), fail);
  }
  if (file.size > mostText) fail("is " + size(file.size) + "; a text file may have " + size(mostText) + ". Add a part of it.");
  const text = decode(new Uint8Array(await file.arrayBuffer()));
  if (text === undefined) fail("is not text. Text, code, PDF files, images and audio can be added.");
  if (!text.trim()) fail("is empty.");
  return { parts: [{ name, text }] };
}

// Returns the format of a sound by how it begins.
function formatOf(bytes) {
  const begins = String.fromCharCode(...bytes.subarray(0, 12));
  if (/^RIFF[^]{4}WAVE/.test(begins)) return "wav";
  return begins.startsWith("ID3") || bytes[0] === 0xff && bytes[1] >= 0xe0 ? "mp3" : undefined;
}

function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

// Returns the text of a file in UTF-8, or in UTF-16 with a byte order mark; undefined if it is neither.
function decode(bytes) {
  const mark = bytes[0] << 8 | bytes[1], encoding = mark === 0xfffe ? "utf-16le" : mark === 0xfeff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return /[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text) ? undefined : text.replaceAll("\r\n", "\n");
  } catch {
    return undefined;
  }
}

// Returns the text of a PDF file, or its first pages as images if it has only pictures of them.
async function readPDF(file, takes, { getDocument, PDFWorker }, address, fail) {
  const port = new Worker(address, { type: "module" }), worker = new PDFWorker({ port, verbosity: 0 });
  let lost = false; // whether text is in a character encoding whose table the file does not have
  class BinaryDataFactory {
    async fetch({ kind }) {
      lost ||= kind === "cMapUrl";
      throw new Error("no " + kind);
    }
  }
  try {
    const pdf = await getDocument({ data: await file.arrayBuffer(), worker, BinaryDataFactory, disableFontFace: true, useSystemFonts: false, useWasm: false }).promise;
    if (pdf.numPages > mostPages) fail("has " + pdf.numPages + " pages; at most " + mostPages + " are read. Add a part of it.");
    let text = "";
    for (let n = 1; n <= pdf.numPages; n++) {
      const page = await pdf.getPage(n);
      for (const { str, hasEOL } of (await page.getTextContent()).items) text += (str ?? "") + (hasEOL ? "\n" : "");
      text = text.trimEnd() + "\n\n";
      page.cleanup();
      if (text.length > mostText) fail("has more than " + size(mostText) + " of text. Add a part of it.");
    }
    if (lost) fail("has text in a Chinese, Japanese or Korean encoding that is not in the file, and that cannot be read here. Add its text instead.");
    if (text.trim()) return { parts: [{ name: file.name, text: text.trim().replaceAll("\0", "") + "\n" }] };
    if (!takes.images) fail("has no text, only pictures of pages, and " + takes.model + " takes no images. Choose a model that does.");
    const parts = [], shown = Math.min(pdf.numPages, Math.max(1, takes.room));
    for (let n = 1; n <= shown; n++) {
      const url = await picture(await pdf.getPage(n));
      if (url) parts.push({ url });
    }
    if (parts.length === 0) fail("has no text, and no pictures that can be read here.");
    const which = shown < pdf.numPages ? "The first " + shown + " of " + pdf.numPages + " pages of " : "The pages of ", blank = shown - parts.length;
    return { parts, note: which + file.name + " are added as images" + (blank > 0 ? ", except " + blank + " that are blank or cannot be read here." : ".") };
  } catch (error) {
    if (error.message.startsWith(file.name)) throw error;
    return fail(error.name === "PasswordException" ? "is protected by a password. Save it without one." : "cannot be read as a PDF file.");
  } finally {
    worker.destroy();
    port.terminate();
  }
}

const mostSide = 1280; // pixels of an image

// Returns a canvas of a size, which is white.
function paper(width, height) {
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(width));
  canvas.height = Math.max(1, Math.round(height));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  return { canvas, pen };
}

const jpeg = (canvas) => canvas.toDataURL("image/jpeg", 0.85);

// Returns an image as a JPEG, as a data URL.
async function small(image) {
  const bitmap = await createImageBitmap(image);
  const scale = Math.min(1, mostSide / Math.max(bitmap.width, bitmap.height));
  const { canvas, pen } = paper(bitmap.width * scale, bitmap.height * scale);
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return jpeg(canvas);
}

// Returns a page of a PDF file as a JPEG, as a data URL; "" if it is blank, as a page is whose picture is in a
// format that pdf.js cannot read here.
async function picture(page) {
  const { width, height } = page.getViewport({ scale: 1 }), scale = mostSide / Math.max(width, height);
  const { canvas, pen } = paper(width * scale, height * scale);
  await page.render({ canvas, viewport: page.getViewport({ scale }) }).promise;
  page.cleanup();
  const points = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return points.every((point) => point === points[0]) ? "" : jpeg(canvas);
}
