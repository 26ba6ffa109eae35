// openai-node: chat and embeddings.
import OpenAI from 'openai';
import { suite } from './suite.mjs';

const client = ({ v1, key }) => new OpenAI({ baseURL: v1, apiKey: key, maxRetries: 0 });
const asked = (model, text) => ({ model, temperature: 0, messages: [{ role: 'user', content: text }] });
const told = ({ choices: [{ message, finish_reason }], usage }) => ({
  text: message.content, finish: finish_reason, input: usage.prompt_tokens, output: usage.completion_tokens,
});

suite('openai-node', {
  finish: 'stop',
  names: {
    401: 'AuthenticationError', 403: 'PermissionDeniedError', 404: 'NotFoundError', 413: 'APIError',
    429: 'RateLimitError', 503: 'InternalServerError',
  },
  told: (error) => ({ status: error.status, code: error.code, name: error.constructor.name }),
  broken: (error) => error instanceof OpenAI.APIError && error.code === 'engine_error',
  async list(at) {
    const ids = [];
    for await (const model of client(at).models.list()) ids.push(model.id);
    await client(at).models.retrieve('tiny');
    return ids;
  },
  ask: async (at, model, text) => told(await client(at).chat.completions.create(asked(model, text))),
  async stream(at, model, text, heard) {
    const stream = client(at).chat.completions.stream({ ...asked(model, text), stream_options: { include_usage: true } });
    stream.on('content', heard);
    return told(await stream.finalChatCompletion());
  },
  async tools(at, model, text, read, streamed) {
    const runner = client(at).chat.completions.runTools({
      ...asked(model, text), ...(streamed && { stream: true, stream_options: { include_usage: true } }),
      tools: [{
        type: 'function',
        function: {
          name: 'read', description: 'Reads a file.', function: read, parse: JSON.parse,
          parameters: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
        },
      }],
    });
    const answer = await runner.finalContent();
    return { text: answer, input: runner.allChatCompletions()[0].usage.prompt_tokens };
  },
  async embed(at, model, input) {
    const { data } = await client(at).embeddings.create({ model, input });
    return data.map(({ embedding }) => embedding);
  },
});
