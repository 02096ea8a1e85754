// A program of Node that knows nothing of Surehold: 20 calls with the SDKs of OpenAI and Anthropic.

const { OpenAI } = require("openai");
const { Anthropic } = require("@anthropic-ai/sdk");

const openai = new OpenAI();
const anthropic = new Anthropic();

async function told(stream) {
  const events = [];
  for await (const event of stream) events.push(JSON.stringify(event));
  return events;
}

async function ask(n) {
  const messages = [{ role: "user", content: `question ${n}` }];
  const claude = { model: "claude-x", max_tokens: 99, messages };
  const responses = { model: "m", input: `question ${n}` };
  switch (n % 6) {
    case 0: return openai.chat.completions.create({ model: "m", messages });
    case 1: return told(await openai.chat.completions.create({ model: "m", messages, stream: true }));
    case 2: return anthropic.messages.create(claude);
    case 3: return told(await anthropic.messages.create({ ...claude, stream: true }));
    case 4: return openai.responses.create(responses);
    default: return told(await openai.responses.create({ ...responses, stream: true }));
  }
}

(async () => {
  for (let n = 0; n < 20; n++) console.log(JSON.stringify(await ask(n)));
})();
