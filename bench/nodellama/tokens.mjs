// node tokens.mjs FILE THREADS AT_ONCE TOKENS PROMPT: generates on AT_ONCE sequences, and
// prints tokens a second, and tokens a second of CPU.
import {getLlama} from "node-llama-cpp";

const [file, threads, atOnce, tokens, prompt] = [process.argv[2], ...process.argv.slice(3, 6).map(Number), process.argv[6]];
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({sequences: atOnce, contextSize: 1024, threads, batchSize: 512});
const sequences = Array.from({length: atOnce}, () => context.getSequence());
const input = model.tokenize(prompt, true);

async function run(sequence, limit) {
  await sequence.clearHistory();
  let count = 0;
  for await (const token of sequence.evaluate(input, {temperature: 0, yieldEogToken: true})) {
    model.detokenize([token]);
    if (++count >= limit) break;
  }
  return count;
}

await Promise.all(sequences.map((sequence) => run(sequence, tokens)));
const began = performance.now(), used = process.cpuUsage();
const counts = await Promise.all(sequences.map((sequence) => run(sequence, tokens)));
const seconds = (performance.now() - began) / 1000, cpu = process.cpuUsage(used);
const all = counts.reduce((a, b) => a + b);
console.log(all / seconds, all * 1e6 / (cpu.user + cpu.system));
await llama.dispose();
