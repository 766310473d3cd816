"""Chat templates as checkpoints bring them, and conversations to render: shared with the comparison in tests/oracles.

SMOLLM2 is the model's own. The others, here and in `chat_families`, are written in the manner of well-known families,
and use what those use.
"""

from __future__ import annotations

from typing import Any

from checkpoint.chat_families import FAMILIES

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CHATML = """\
{% for message in messages %}
    {% if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{ raise_exception('unknown role: ' ~ message.role) }}
    {% endif %}
    <|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to the following functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content and loop.index0 < ns.last_query_index %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.function.name ~ '", "arguments": ' }}
            {%- set arguments = tool_call.function.arguments %}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

GENERATION = """\
{%- macro block(role) -%}
[{{ role | upper }}]{{ caller() }}[/{{ role | upper }}]
{%- endmacro -%}
{%- set total = 0 -%}
{%- for message in messages if message.content -%}
{%- if loop.index > 3 -%}{%- break -%}{%- endif -%}
{%- if message.role == 'assistant' -%}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else -%}
{%- call block(message.role) -%}{{ message.content | replace("'", "’") | indent(2) }}{%- endcall -%}
{%- endif -%}
{%- endfor -%}
{{- dict(a=1, b=[1, 2.5, none, true]) | tojson(sort_keys=true) -}}
{{- {'é': '<&>', 'n': 1} | tojson -}}
{{- messages | map(attribute='role') | join(', ') -}}
"""

PLAIN = [{"role": "user", "content": "Hi, <b>'you'</b> & 你好 🚀"}]
WITH_SYSTEM = [{"role": "system", "content": "  Be brief.\n"}, *PLAIN]
TURNS = [
    *WITH_SYSTEM,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
    {"role": "user", "content": "Bye"},
]
ALTERNATING = [*PLAIN, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> in a 城市",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
MANY_TOOLS = [
    *TOOLS,
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object"}}},
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": 'Look "things" up',
            "parameters": {
                "type": "object",
                "properties": {
                    "kind": {"type": "string", "enum": ["web", "images"], "default": "web", "description": "What"},
                    "terms": {"type": "array", "items": {"type": "string"}},
                    "limit": {"type": ["integer", "null"], "default": 10},
                    "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                    "any": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                },
                "required": ["terms"],
            },
        },
    },
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Malmö", "days": 3}}}
TOOL_USE = [
    *WITH_SYSTEM,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"sun": true}'},
]

TEMPLATES = {
    "smollm2": SMOLLM2,
    "chatml": CHATML,
    "llama3": LLAMA3,
    "qwen": QWEN,
    "mistral": MISTRAL,
    "generation": GENERATION,
    **FAMILIES,
}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "plain": {"messages": PLAIN},
    "without prompt": {"messages": PLAIN, "add_generation_prompt": False},
    "system": {"messages": WITH_SYSTEM},
    "turns": {"messages": TURNS},
    "alternating": {"messages": ALTERNATING},
    "tools": {"messages": WITH_SYSTEM, "tools": TOOLS},
    "tool use": {"messages": TOOL_USE, "tools": TOOLS},
    "no thinking": {"messages": PLAIN, "enable_thinking": False},
    "many tools": {"messages": PLAIN, "tools": MANY_TOOLS},
    "parts": {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What? "}]}]},
    "documents": {"messages": PLAIN, "documents": [{"title": "A", "text": "one"}, {"title": "B", "text": "two"}]},
    "answer": {"messages": ALTERNATING[:2], "add_generation_prompt": False},
}
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024"}
REFUSED = "REFUSED: "
"""Stands before the message in place of a text where the template raises."""


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Template and arguments of every pair, by a name for the two."""
    return {
        f"{template}, {conversation}": (TEMPLATES[template], {**VARIABLES, **arguments})
        for template in TEMPLATES
        for conversation, arguments in CONVERSATIONS.items()
    }
