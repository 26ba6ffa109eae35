// What every official client library for JavaScript must see of kith, given
// nothing but a base URL and a key. libraries_test.go starts the network, says in
// KITH_E2E where it is, and runs these files; each says how its library is asked. It runs
// them again, with `sealed`, at daemons that have no engine and seal each call.
import { test, describe } from 'node:test';
import assert from 'node:assert/strict';

const network = JSON.parse(process.env.KITH_E2E);

const { ada: here, eve, limited, sealed } = network;
const question = 'What is the capital of France?';

// What a caller is refused, and how: the row, then the call that meets it.
const refusals = [
  // A daemon's own surface takes every key.
  ...(sealed ? [] : [{ status: 401, code: 'invalid_api_key', at: { ...here, key: 'kith_wrong' }, model: 'tiny', text: 'hi' }]),
  { status: 404, code: 'model_not_found', at: here, model: 'gpt-4o', text: 'hi' },
  { status: 403, code: 'NOT_IN_CIRCLE', at: eve, model: 'tiny', text: 'hi' },
  { status: 413, code: 'request_too_large', at: here, model: 'tiny', text: 'x'.repeat(33 << 20) },
  { status: 429, code: 'rate_limit_exceeded', at: limited, model: 'tiny', text: 'hi' },
  { status: 503, code: 'CASCADE_EXHAUSTED', at: here, model: 'paused', text: 'hi' },
];

/**
 * Runs the list against one library in one dialect. `at` is {v1, base, key}.
 *
 * - list(at): model ids; absent where the library cannot list. A daemon lists only what it serves itself
 * - ask(at, model, text): {text, finish, input, output}, finish and tokens as the library says them
 * - stream(at, model, text, heard): the same of a stream; heard(piece) is called for each piece of text
 * - tools(at, model, text, read, streamed): the answer's text after a round trip in which the library called
 *   read({path}); `input` of the first answer
 * - embed(at, model, texts): vectors; absent where the library has no embeddings
 * - told(error): {status, code, name} as the library tells them
 * - names: the error's name for each status; finish: the library's word for a good end
 * - broken(error): whether a stream that broke is told with its code, where the library keeps it
 * - clear: its dialect is not sealed
 * - blind: it takes a stream's prompt tokens from the first event alone, before any engine has counted them
 */
export function suite(name, lib) {
  if (sealed && lib.clear) return;
  describe(name, { concurrency: true }, () => {
    if (lib.list && !sealed) {
      test('list models', async () => {
        const ids = await lib.list(here);
        assert.deepEqual(ids.sort(), ['paused', 'test-model', 'tiny']);
      });
    }

    test('unary, usage', async () => {
      const answer = await lib.ask(here, 'tiny', question);
      assert.equal(answer.text, 'The capital of France is Paris.');
      assert.equal(answer.finish, lib.finish);
      assert.ok(answer.input > 5 && answer.output > 5, JSON.stringify(answer));
    });

    test('stream, usage', async () => {
      let said = '';
      const answer = await lib.stream(here, 'tiny', 'Tell me a long story about an owl.', (piece) => { said += piece; });
      assert.ok(said.includes('owl'), said);
      assert.equal(answer.finish, lib.finish);
      assert.ok(answer.output >= 20 && (answer.input > 5 || lib.blind), JSON.stringify(answer));
    });

    for (const streamed of [false, true]) {
      test(`tools round trip, ${streamed ? 'streamed' : 'unary'}`, async () => {
        const calls = [];
        const read = (args) => { calls.push(args); return 'hello'; };
        const answer = await lib.tools(here, 'test-model', 'What does the file say?', read, streamed);
        assert.deepEqual(calls, [{ path: 'a b.txt' }]);
        assert.equal(answer.text, 'The file says hello.');
        assert.equal(answer.input, streamed && lib.blind ? 0 : 11, 'prompt tokens of the first answer');
      });
    }

    if (lib.embed) {
      test('embeddings', async () => {
        const vectors = await lib.embed(here, 'tiny', [question, 'What is the capital of Spain?']);
        const plain = await fetch(`${here.v1}/embeddings`, {
          method: 'POST',
          headers: { authorization: `Bearer ${here.key}`, 'content-type': 'application/json' },
          body: JSON.stringify({ model: 'tiny', input: [question, 'What is the capital of Spain?'], encoding_format: 'float' }),
        }).then((response) => response.json());
        assert.equal(vectors.length, 2);
        vectors.forEach((vector, i) => {
          const want = plain.data[i].embedding;
          assert.equal(vector.length, 128);
          assert.ok(vector.every((x, k) => Math.abs(x - want[k]) < 1e-5), 'the numbers are not those that plain floats give');
        });
      });
    }

    for (const { status, code, at, model, text } of refusals) {
      for (const streamed of [false, true]) {
        test(`${status} ${code}, ${streamed ? 'streamed' : 'unary'}`, async () => {
          const ask = () => (streamed ? lib.stream(at, model, text, () => {}) : lib.ask(at, model, text));
          let error;
          // A fresh bucket of the limited key passes some calls first.
          for (let tries = 0; tries < 5 && (!error || (status === 429 && lib.told(error).status === 404)); tries++) {
            error = await ask().then(() => undefined, (e) => e);
          }
          assert.ok(error, 'no exception');
          assert.deepEqual(lib.told(error), { status, code, name: lib.names[status] }, error.stack);
        });
      }
    }

    test('a stream that breaks', async () => {
      const pieces = []; // one a chunk; the tokens of a fast engine share one
      const error = await lib.stream(here, 'test-model', 'break', (piece) => { pieces.push(piece); }).then(() => undefined, (e) => e);
      assert.deepEqual(pieces, ['one ', 'two ']);
      assert.ok(error, 'the half answer passed for a whole one');
      assert.ok(lib.broken(error), `the code is lost: ${error.stack}`);
    });
  });
}
