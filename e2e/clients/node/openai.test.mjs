// openai-node: chat, embeddings and responses.
import OpenAI from 'openai';
import { suite } from './suite.mjs';

const client = ({ v1, key }) => new OpenAI({ baseURL: v1, apiKey: key, maxRetries: 0 });
const asked = (model, text) => ({ model, temperature: 0, messages: [{ role: 'user', content: text }] });
const errors = {
  names: {
    401: 'AuthenticationError', 403: 'PermissionDeniedError', 404: 'NotFoundError', 413: 'APIError',
    429: 'RateLimitError', 503: 'InternalServerError',
  },
  told: (error) => ({ status: error.status, code: error.code, name: error.constructor.name }),
  broken: (error) => error instanceof OpenAI.APIError && error.code === 'engine_error',
};
const told = ({ choices: [{ message, finish_reason }], usage }) => ({
  text: message.content, finish: finish_reason, input: usage.prompt_tokens, output: usage.completion_tokens,
});

suite('openai-node', {
  ...errors,
  finish: 'stop',
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

const response = ({ output_text, status, usage }) => ({
  text: output_text, finish: status, input: usage.input_tokens, output: usage.output_tokens,
});
const streamed = (at, request, heard) => {
  const stream = client(at).responses.stream(request);
  stream.on('response.output_text.delta', ({ delta }) => heard(delta));
  return stream.finalResponse();
};

suite('openai-node, responses', {
  ...errors,
  clear: true,
  finish: 'completed',
  ask: async (at, model, input) => response(await client(at).responses.create({ model, input, temperature: 0 })),
  stream: async (at, model, input, heard) => response(await streamed(at, { model, input, temperature: 0 }, heard)),
  async tools(at, model, input, read, stream) {
    const ask = (request) => (stream ? streamed(at, request, () => {}) : client(at).responses.create(request));
    const tools = [{
      type: 'function', name: 'read', description: 'Reads a file.', strict: false,
      parameters: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] },
    }];
    const first = await ask({ model, input, tools });
    const results = first.output.filter(({ type }) => type === 'function_call').map(({ call_id, arguments: args }) => ({
      type: 'function_call_output', call_id, output: read(JSON.parse(args)),
    }));
    const second = await ask({ model, input: results, tools, previous_response_id: first.id });
    return { text: second.output_text, input: first.usage.input_tokens };
  },
});
