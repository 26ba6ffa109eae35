// The Vercel AI SDK, with each of its three providers.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, embedMany, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { suite } from './suite.mjs';

// What a call or a stream gave; a stream's members are promises.
const told = async ({ text, finishReason, usage }) => {
  const { inputTokens, outputTokens } = await usage;
  return { text: await text, finish: await finishReason, input: inputTokens, output: outputTokens };
};
// What breaks a stream comes as a part of it: the library's way to throw.
const drain = async (stream, heard) => {
  for await (const part of stream.fullStream) {
    if (part.type === 'error') throw part.error;
    if (part.type === 'text-delta') heard(part.text);
  }
  return stream;
};
const quietly = { maxRetries: 0, maxOutputTokens: 500, temperature: 0, onError: () => {} };

const provider = (name, model, more) => suite(name, {
  finish: 'stop',
  names: Object.fromEntries([401, 403, 404, 413, 429, 503].map((status) => [status, 'AI_APICallError'])),
  told: (error) => ({
    status: error.statusCode, code: APICallError.isInstance(error) && JSON.parse(error.responseBody).error.code, name: error.name,
  }),
  ask: async (at, id, prompt) => told(await generateText({ ...quietly, model: model(at, id), prompt })),
  stream: async (at, id, prompt, heard) => told(await drain(streamText({ ...quietly, model: model(at, id), prompt }), heard)),
  async tools(at, id, prompt, read, streamed) {
    const request = {
      ...quietly, model: model(at, id), prompt, stopWhen: stepCountIs(2),
      tools: { read: tool({ description: 'Reads a file.', inputSchema: z.object({ path: z.string() }), execute: read }) },
    };
    const answer = streamed ? await drain(streamText(request), () => {}) : await generateText(request);
    return { text: await answer.text, input: (await answer.steps)[0].usage.inputTokens };
  },
  ...more,
});

const openai = ({ v1, key }) => createOpenAI({ baseURL: v1, apiKey: key });
const compatible = ({ v1, key }) => createOpenAICompatible({ name: 'kith', baseURL: v1, apiKey: key, includeUsage: true });
const anthropic = ({ v1, key }) => createAnthropic({ baseURL: v1, apiKey: key });
const embed = (library) => async (at, id, values) => (await embedMany({ model: library(at).textEmbeddingModel(id), values, maxRetries: 0 })).embeddings;

const code = (error) => error.code === 'engine_error';

provider('ai, @ai-sdk/openai', (at, id) => openai(at).chat(id), { broken: code, embed: embed(openai) });
provider('ai, @ai-sdk/openai, responses', (at, id) => openai(at).responses(id), { broken: code, clear: true });
provider('ai, @ai-sdk/openai-compatible', (at, id) => compatible(at)(id), { broken: code, embed: embed(compatible) });
provider('ai, @ai-sdk/anthropic', (at, id) => anthropic(at)(id), {
  broken: (error) => error.type === 'api_error', // type and message are all that the library keeps
});
