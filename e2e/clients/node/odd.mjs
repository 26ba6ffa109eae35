// The stream helpers of the official libraries as oracles: odd.mjs BASE KEY MEANT [sealed],
// where MEANT is a file with the text and the calls of each stream, by its number. The
// responses dialect is not sealed.
import { readFileSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import Anthropic from '@anthropic-ai/sdk';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText, tool } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [, , hub, key, file, sealed] = process.argv;
const meant = JSON.parse(readFileSync(file, 'utf8'));
const model = 'test-model';
const names = ['f', 'g', 'h'];
const schema = { type: 'object', properties: {} };

const openai = new OpenAI({ baseURL: `${hub}/v1`, apiKey: key, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: hub, apiKey: key, maxRetries: 0 });
const compatible = createOpenAICompatible({ name: 'kith', baseURL: `${hub}/v1`, apiKey: key, includeUsage: true });
const claude = createAnthropic({ baseURL: `${hub}/v1`, apiKey: key });
const aiTools = Object.fromEntries(names.map((name) => [name, tool({ description: name, inputSchema: z.any() })]));
const functions = names.map((name) => ({ type: 'function', function: { name, parameters: schema } }));

const ai = (library) => async (content) => {
  let text = '';
  const calls = [];
  for await (const part of streamText({ model: library(model), prompt: content, tools: aiTools, maxRetries: 0, onError: () => {} }).fullStream) {
    if (part.type === 'error') throw part.error;
    if (part.type === 'text-delta') text += part.text;
    if (part.type === 'tool-call') {
      if (part.error) throw part.error;
      calls.push({ id: part.toolCallId, name: part.toolName, arguments: part.input });
    }
  }
  return { text, calls };
};

const oracles = {
  async openai(content) {
    const answer = await openai.chat.completions.stream({ model, messages: [{ role: 'user', content }], tools: functions, stream_options: { include_usage: true } }).finalChatCompletion();
    const { message } = answer.choices[0];
    if (answer.model !== model) throw new Error(`the model is ${answer.model}`);
    return { text: message.content ?? '', calls: (message.tool_calls ?? []).map((c) => ({ id: c.id, name: c.function.name, arguments: JSON.parse(c.function.arguments) })) };
  },
  async responses(content) {
    const answer = await openai.responses.stream({ model, input: content, tools: functions.map((f) => ({ type: 'function', strict: false, ...f.function })) }).finalResponse();
    return { text: answer.output_text, calls: answer.output.filter((i) => i.type === 'function_call').map((c) => ({ id: c.call_id, name: c.name, arguments: JSON.parse(c.arguments) })) };
  },
  async anthropic(content) {
    const answer = await anthropic.messages.stream({ model, max_tokens: 500, messages: [{ role: 'user', content }], tools: names.map((name) => ({ name, input_schema: schema })) }).finalMessage();
    return {
      text: answer.content.filter((b) => b.type === 'text').map((b) => b.text).join(''),
      calls: answer.content.filter((b) => b.type === 'tool_use').map((b) => ({ id: b.id, name: b.name, arguments: b.input })),
    };
  },
  'ai, openai-compatible': ai(compatible),
  'ai, anthropic': ai(claude),
};

if (sealed) delete oracles.responses;

let wrong = 0;
const ask = async (name, number) => {
  try {
    const { text, calls } = await oracles[name](`odd ${number}`);
    const ids = new Set(calls.map((c) => c.id));
    const said = { text: text.trim(), calls: calls.map(({ id, ...call }) => call) };
    const want = { text: meant[number].text.trim(), calls: meant[number].calls ?? [] };
    if (!isDeepStrictEqual(said, want) || ids.size !== calls.length) throw new Error(`got ${JSON.stringify(said)}, want ${JSON.stringify(want)}`);
  } catch (error) {
    if (wrong++ < 10) console.error(`stream ${number}, ${name}: ${error.message}`);
  }
};

const work = meant.flatMap((_, number) => Object.keys(oracles).map((name) => [name, number]));
let next = 0;
await Promise.all(Array.from({ length: 8 }, async () => {
  while (next < work.length) await ask(...work[next++]);
}));
console.log(`${work.length} streams joined, ${wrong} wrong`);
process.exit(wrong ? 1 : 0);
