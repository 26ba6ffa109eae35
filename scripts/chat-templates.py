"""Writes golden.json and vectors.json for scripts/chat-templates.sh.

    python3 scripts/chat-templates.py TEST-CHAT.CPP FOLDER

FOLDER has the templates.
"""
import datetime
import glob
import json
import os
import re
import sys

import jinja2.ext
import jinja2.sandbox

# ---- Conversations, rendered as transformers does.

READ = {"path": "src/main.go", "limit": 20}
RUN = {"command": "go test ./... && echo 'fertig <ü>'", "timeout": 2.5, "env": {"HOME": "/root", "GOFLAGS": "-p=1"}, "background": False}
IDS = "abcdef123", "ghijkl456"


def tool(name, description, required, **properties):
    parameters = {"type": "object", "properties": properties, "required": [required]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("read_file", "Reads a file's text. Don't use it for <binary> files & pictures.", "path",
         path={"type": "string", "description": "the file's path"}, limit={"type": "integer", "description": "at most this many lines"}),
    tool("run_command", "Runs a command in a shell (größer).", "command", command={"type": "string"}, timeout={"type": "number"},
         env={"type": "object", "additionalProperties": {"type": "string"}}, background={"type": "boolean"}),
]
BEGIN = [
    {"role": "system", "content": "You are a careful coding agent."},
    {"role": "user", "content": "What does src/main.go do? It's <short> & \"nice\" – größer 😀"},
]
END = [{"role": "assistant", "content": "It prints hi."}, {"role": "user", "content": "Thanks. And then?"}]


def answer(calls, **members):
    return {"role": "assistant", "content": "", **members, "tool_calls": [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}} for i, (name, arguments) in zip(IDS, calls)]}


def result(i, name, content):
    return {"role": "tool", "tool_call_id": IDS[i], "name": name, "content": content}


def scenarios():
    read, run = ("read_file", READ), ("run_command", RUN)
    file = result(0, "read_file", "package main\n\nfunc main() { println(\"hi\") }\n")
    tools = {
        "tools": BEGIN,
        "call": BEGIN + [answer([read]), file],
        "text arguments": BEGIN + [answer([("read_file", json.dumps(READ))]), file],
        "two turns": BEGIN + [answer([read]), file] + END + [answer([run], reasoning_content="Now it runs."), result(0, "run_command", "ok")],
        "types": BEGIN + [answer([run]), result(0, "run_command", "ok")],
        "text and call": BEGIN + [answer([read], content="I shall read it."), file] + END,
        "reasoning and call": BEGIN + [answer([read], reasoning_content="The file must be read first."), file],
        "two calls": BEGIN + [answer([read, run]), file, result(1, "run_command", "ok")],
    }
    all = {name: {"messages": messages, "tools": TOOLS} for name, messages in tools.items()}
    all["one message"] = {"messages": BEGIN[1:]}
    all["chat"] = {"messages": BEGIN + END}
    all["thinking"] = {"messages": BEGIN, "enable_thinking": True}
    all["no thinking"] = {"messages": BEGIN, "enable_thinking": False}
    all["tools, no thinking"] = {"messages": BEGIN, "tools": TOOLS, "enable_thinking": False}
    return all


class Generation(jinja2.ext.Extension):
    """The tag generation, which marks the assistant's texts for training."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("text"), [], [], body).set_lineno(line)

    def text(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2001, 2, 3).strftime
    return env


def golden(folder):
    out, env = {}, environment()
    for file in sorted(glob.glob(folder + "/*.jinja")):
        with open(file) as f:
            template = env.from_string(f.read())
        rendered = out[os.path.basename(file)[:-len(".jinja")]] = {}
        for name, conversation in scenarios().items():
            try:
                rendered[name] = template.render(**conversation, add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>")
            except Exception:  # the template refuses the conversation
                pass
    return {"scenarios": scenarios(), "templates": out}


# ---- Answers of models: the literals of test-chat.cpp.

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|\s+|R"([^\s()]*)\((?P<raw>.*?)\)\1"|(?P<text>"(?:[^"\\]|\\.)*")|(?P<name>[A-Za-z_][\w:]*)|(?P<number>-?\d[\w.]*)|(?P<sign>.)', re.S)
ESCAPE = re.compile(r'\\(x[0-9a-fA-F]+|u[0-9a-fA-F]{4}|.)', re.S)


def unquote(text):
    def char(m):
        c = m.group(1)
        return chr(int(c[1:], 16)) if c[0] in "xu" and len(c) > 1 else {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}.get(c, c)
    return ESCAPE.sub(char, text[1:-1])


class Unknown(Exception):
    """An expression that is no literal."""


class Source:
    """Reads declarations and tests in the order of the file."""

    def __init__(self, text):
        self.tokens, self.at = [], 0  # (kind, value, line)
        line = 1
        for m in TOKEN.finditer(text):
            if m.lastgroup:
                self.tokens.append((m.lastgroup, m.group(m.lastgroup), line))
            line += m.group().count("\n")
        self.tokens.append(("end", "", line))
        self.names = {"true": True, "false": False}
        self.templates, self.vectors = [], []

    def next(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def has(self, sign):
        if self.tokens[self.at][1] == sign and self.tokens[self.at][0] in ("sign", "name"):
            self.at += 1
            return True
        return False

    def list(self, end):
        values = []
        while not self.has(end):
            values.append(self.value())
            self.has(",")
        return values

    def value(self):
        kind, value, _ = self.next()
        if kind in ("raw", "text"):
            value = value if kind == "raw" else unquote(value)
            while self.tokens[self.at][0] in ("raw", "text"):
                value += self.value()
        elif kind == "name" and (self.has("(") or self.has("{")):
            value = self.call(value, self.list(")" if self.tokens[self.at - 1][1] == "(" else "}"))
        elif kind == "name":
            if value not in self.names and not value.startswith("COMMON_"):
                raise Unknown(value)
            value = self.names.get(value, value)
        elif value == "{":
            value = self.list("}")
        elif kind != "number":
            raise Unknown(value)
        if self.has("+"):
            value += self.value()
        return value

    @staticmethod
    def call(name, args):
        if name == "std::string":
            return args[0]
        reasoning = content = ""
        if name == "simple_assist_msg":
            content, reasoning, *call = args + [""] * (5 - len(args))
            calls = [call] if call[0] or call[2] else []
        elif name == "message_with_tool_calls":
            calls = [args]
        elif name == "message_with_tool_calls_and_reasoning":
            *call, reasoning = args
            calls = [call]
        elif name == "message_with_reasoning_content_and_multiple_tool_calls":
            reasoning, content, calls = args
        elif name == "message_with_content_and_tool_call":
            content, *call = args
            calls = [call]
        elif name == "message_with_reasoning_and_tool_call":
            reasoning, *call = args
            calls = [call]
        else:
            raise Unknown(name)
        return {"content": content, "reasoning": reasoning, "calls": [(c + [""])[:3] for c in calls]}

    def read(self):
        while self.tokens[self.at][0] != "end":
            _, value, line = self.next()
            begin = self.at
            try:
                if value == "common_chat_tool" and self.tokens[self.at + 1][1] == "{":
                    name = self.next()[1]
                    self.next()
                    self.names[name] = self.tool(self.list("}"))
                elif value in ("common_chat_msg", "std::string", "char") and self.tokens[self.at + 1][1] == "=":
                    name = self.next()[1]
                    self.next()
                    self.names[name] = self.value()
                elif value == "path" and self.has(":"):
                    self.templates = self.value()
                elif value == "peg_tester" and self.has("(") and self.tokens[self.at][0] == "text":
                    self.templates = [self.value()]
                elif re.fullmatch(r"tst\d?", value) and self.has(".") and self.has("test") and self.has("("):
                    self.test(line)
            except Unknown:
                self.at = begin

    @staticmethod
    def tool(members):
        name, description, parameters = members
        return {"type": "function", "function": {"name": name, "description": description, "parameters": json.loads(parameters)}}

    def test(self, line):
        answer, = self.list(")")
        expect, options, tools = {"content": "", "reasoning": "", "calls": []}, {}, []
        while self.has("."):
            method = self.next()[1]
            self.next()
            begin = self.at
            try:
                args = self.list(")")
            except Unknown:
                if method != "messages":
                    raise
                self.at, depth, args = begin, 1, []
                while depth:
                    depth += {"(": 1, ")": -1}.get(self.next()[1], 0)
            if method == "expect":
                expect = args[0]
            elif method in ("expect_content", "expect_reasoning"):
                expect = {**expect, method[len("expect_"):]: args[0]}
            elif method == "expect_tool_calls":
                expect = {**expect, "calls": [[c[0], c[1], c[2] or ""] for c in args[0]]}
            elif method == "tools":
                tools = [self.tool(t) if isinstance(t, list) else t for t in args[0]]
            elif args:
                options[method] = args[0]
        # Answers that go on what another one began, and marks of reasoning as text, are left out.
        marks = re.search(r"\[THINK\]|<think>.*</|<\|START_THINKING", expect["content"], re.S)
        if marks or {"continue_final_message", "is_partial", "json_schema"} & set(options) or options.get("reasoning_format", "").endswith("NONE"):
            return
        for path in self.templates:
            self.vectors.append({
                "template": os.path.basename(path)[:-len(".jinja")], "line": line, "answer": answer, "tools": tools,
                "thinking": options.get("enable_thinking", True), "expect": expect,
            })


def main(source, folder):
    def write(name, value):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)

    write("golden.json", golden(folder))
    with open(source) as f:
        tests = Source(f.read())
    tests.read()
    write("vectors.json", tests.vectors)


main(*sys.argv[1:])
