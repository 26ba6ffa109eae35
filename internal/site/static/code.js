// The chat as a program calls it. Chat loads this module when it is shown first.
const at = (id) => document.getElementById(id);
let base, body;

// Shows a call in the chat dialect to the API at an address.
export function show(address, call) {
  [base, body] = [address, call];
  write();
  at("code").showModal();
}

// Returns a value as JSON, with images and sounds cut short.
const short = { url: "data:image/jpeg;base64,…", data: "…" };
const json = (value, indent) => JSON.stringify(value, (key, part) => short[key] ?? part, indent);

function write() {
  const members = Object.entries(body), arguments_ = (each) => members.map(each).join("\n");
  at("snippet").textContent = {
    curl: () => `curl ${base}/chat/completions \\
  -H "Authorization: Bearer $KITH_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '${json(body, 2).replaceAll("'", "'\\''")}'`,
    python: () => `import os
from openai import OpenAI

client = OpenAI(base_url=${json(base)}, api_key=os.environ["KITH_API_KEY"])
stream = client.chat.completions.create(
${arguments_(([name, value]) => `    ${name}=${json(value, 4)},`)}
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
    javascript: () => `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${json(base)}, apiKey: process.env.KITH_API_KEY });
const stream = await client.chat.completions.create({
${arguments_(([name, value]) => `  ${name}: ${json(value, 4)},`)}
  stream: true,
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`,
  }[at("language").value]();
}

at("language").addEventListener("change", write);
at("copy-code").addEventListener("click", async ({ target }) => {
  await navigator.clipboard.writeText(at("snippet").textContent);
  target.textContent = "Copied";
  setTimeout(() => { target.textContent = "Copy"; }, 2000);
});
