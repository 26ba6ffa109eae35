// Reads what is added to a message. Chat loads this module with the first file. Nothing leaves the
// browser before the message is sent.
const mostText = 512 << 10; // bytes of a text file, and characters of a PDF file's text
const mostPDF = 32 << 20; // bytes
const mostPages = 500;

// Returns {url} of an image, made small enough for a call, or {name, text} of a text or PDF file.
// blind is the model if it takes no images. pdf loads pdf.js, whose worker has the address that
// worker returns. The error's message is for the member.
export async function read(file, blind, pdf, worker) {
  const name = file.name || "the file", fail = (why) => { throw new Error(name + " " + why); };
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (blind) fail("cannot be added: " + blind + " takes no images. Choose a model that does.");
    try {
      return { url: await small(file) };
    } catch { fail("cannot be read as an image."); }
  }
  if (file.type === "application/pdf" || /\.pdf$/i.test(name)) {
    if (file.size > mostPDF) fail("is " + size(file.size) + "; a PDF file may have " + size(mostPDF) + ".");
    return { name, text: await textOfPDF(file, await pdf(), worker(), fail) };
  }
  if (file.size > mostText) fail("is " + size(file.size) + "; a text file may have " + size(mostText) + ". Add a part of it.");
  const text = decode(new Uint8Array(await file.arrayBuffer()));
  if (text === undefined) fail("is not text. Text, code, PDF files and images can be added.");
  if (!text.trim()) fail("is empty.");
  return { name, text };
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

async function textOfPDF(file, { getDocument, PDFWorker }, address, fail) {
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
    if (!text.trim()) fail("has no text, only pictures of pages.");
    return text.trim().replaceAll("\0", "") + "\n";
  } catch (error) {
    if (error.message.startsWith(file.name)) throw error;
    return fail(error.name === "PasswordException" ? "is protected by a password. Save it without one." : "cannot be read as a PDF file.");
  } finally {
    worker.destroy();
    port.terminate();
  }
}

// Returns an image as a JPEG with sides of at most 1,280 pixels, as a data URL.
async function small(picture) {
  const bitmap = await createImageBitmap(picture);
  const scale = Math.min(1, 1280 / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}
