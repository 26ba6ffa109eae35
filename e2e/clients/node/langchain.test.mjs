// LangChain.js, with both of its models.
import { ChatAnthropic } from '@langchain/anthropic';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { z } from 'zod';
import { suite } from './suite.mjs';

const whole = async (chunks, heard) => {
  let all;
  for await (const chunk of chunks) {
    if (chunk.text) heard(chunk.text);
    all = all ? all.concat(chunk) : chunk;
  }
  return all;
};

const chat = (name, model, finish, more) => {
  const told = (message) => ({
    text: message.text, finish: message.response_metadata[finish] ?? message.additional_kwargs[finish],
    input: message.usage_metadata.input_tokens, output: message.usage_metadata.output_tokens,
  });
  suite(name, {
    names: {
      401: 'AuthenticationError', 403: 'PermissionDeniedError', 404: 'NotFoundError', 413: 'APIError',
      429: 'RateLimitError', 503: 'InternalServerError',
    },
    ask: async (at, id, text) => told(await model(at, id).invoke(text)),
    stream: async (at, id, text, heard) => told(await whole(await model(at, id).stream(text), heard)),
    async tools(at, id, text, read, streamed) {
      const reader = tool(read, { name: 'read', description: 'Reads a file.', schema: z.object({ path: z.string() }) });
      const bound = model(at, id).bindTools([reader]);
      const ask = async (messages) => (streamed ? whole(await bound.stream(messages), () => {}) : bound.invoke(messages));
      const messages = [new HumanMessage(text)];
      const first = await ask(messages);
      messages.push(first);
      for (const call of first.tool_calls) messages.push(new ToolMessage({ content: await reader.invoke(call.args), tool_call_id: call.id }));
      return { text: (await ask(messages)).text, input: first.usage_metadata.input_tokens };
    },
    ...more,
  });
};

const openai = (more) => ({ v1, key }, model) => new ChatOpenAI({
  model, apiKey: key, temperature: 0, maxRetries: 0, configuration: { baseURL: v1 }, ...more,
});
const openaiErrors = {
  told: (error) => ({ status: error.status, code: error.code, name: error.constructor.name }),
  broken: (error) => error.code === 'engine_error',
};
chat('@langchain/openai', openai(), 'finish_reason', {
  ...openaiErrors,
  finish: 'stop',
  embed: ({ v1, key }, model, texts) => new OpenAIEmbeddings({ model, apiKey: key, maxRetries: 0, configuration: { baseURL: v1 } }).embedDocuments(texts),
});
chat('@langchain/openai, responses', openai({ useResponsesApi: true }), 'status', { ...openaiErrors, finish: 'completed', clear: true });
const code = (error) => error.error?.error?.code; // the library keeps the whole body
chat('@langchain/anthropic', ({ base, key }, model) => new ChatAnthropic({ model, apiKey: key, maxTokens: 500, maxRetries: 0, anthropicApiUrl: base }), 'stop_reason', {
  finish: 'end_turn', blind: true,
  told: (error) => ({ status: error.status, code: code(error), name: error.constructor.name }),
  broken: (error) => code(error) === 'engine_error',
});
