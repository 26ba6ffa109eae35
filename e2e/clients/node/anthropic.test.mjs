// anthropic-sdk-typescript.
import Anthropic from '@anthropic-ai/sdk';
import { suite } from './suite.mjs';

const client = ({ base, key }) => new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 });
const asked = (model, text) => ({ model, max_tokens: 500, messages: [{ role: 'user', content: text }] });
const said = ({ content }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('');
const told = (message) => ({
  text: said(message), finish: message.stop_reason, output: message.usage.output_tokens,
  input: message.usage.input_tokens + message.usage.cache_read_input_tokens,
});

suite('anthropic-sdk-typescript', {
  finish: 'end_turn',
  names: {
    401: 'AuthenticationError', 403: 'PermissionDeniedError', 404: 'NotFoundError', 413: 'ContentTooLargeError',
    429: 'RateLimitError', 503: 'ServiceUnavailableError',
  },
  told: (error) => ({ status: error.status, code: error.errorCode, name: error.constructor.name }),
  broken: (error) => error instanceof Anthropic.APIError && error.errorCode === 'engine_error',
  async list(at) {
    const ids = [];
    for await (const model of client(at).models.list()) ids.push(model.id);
    await client(at).models.retrieve('tiny');
    return ids;
  },
  ask: async (at, model, text) => told(await client(at).messages.create(asked(model, text))),
  async stream(at, model, text, heard) {
    const stream = client(at).messages.stream(asked(model, text));
    stream.on('text', heard);
    return told(await stream.finalMessage());
  },
  async tools(at, model, text, read, streamed) {
    const request = {
      ...asked(model, text),
      tools: [{ name: 'read', description: 'Reads a file.', input_schema: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] } }],
    };
    const ask = () => (streamed ? client(at).messages.stream(request).finalMessage() : client(at).messages.create(request));
    const first = await ask();
    const results = first.content.filter(({ type }) => type === 'tool_use')
      .map(({ id, input }) => ({ type: 'tool_result', tool_use_id: id, content: read(input) }));
    request.messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: results });
    return { text: said(await ask()), input: first.usage.input_tokens };
  },
});
