// Chat templates and reply parsing: upstream's code behind JSON.
#include "internal.h"
#include "text_limits.h"

#include "json.h"

namespace lucebox {

namespace {

common_json parse_object(const char * text, const char * what) {
    require_shallow_json(text != nullptr ? text : "", what);
    common_json value = common_json::parse_no_throw(text != nullptr ? text : "");
    if (value.is_discarded() || !value.is_object()) {
        fail(LUCEBOX_ERR_ARGUMENT, "the %s is not a JSON object", what);
    }
    return value;
}

bool present(const common_json & object, const char * key) {
    return object.contains(key) && !object.at(key).is_null();
}

// JSON inside the strings of a request is parsed as well.
void check_inner_json(const common_json & request) {
    require_shallow_json(request.value("json_schema", ""), "JSON schema");
    for (const common_json & message : request.at("messages")) {
        if (!message.is_object() || !present(message, "tool_calls") || !message.at("tool_calls").is_array()) {
            continue;
        }
        for (const common_json & call : message.at("tool_calls")) {
            if (call.is_object() && present(call, "function") && call.at("function").is_object() &&
                present(call.at("function"), "arguments") && call.at("function").at("arguments").is_string()) {
                require_shallow_json(call.at("function").at("arguments").get<std::string>(), "tool call's arguments");
            }
        }
    }
}

common_chat_templates_inputs read_request(const common_json & request) {
    if (!present(request, "messages") || !request.at("messages").is_array() || request.at("messages").empty()) {
        fail(LUCEBOX_ERR_ARGUMENT, "the chat request has no messages");
    }
    check_inner_json(request);

    common_chat_templates_inputs inputs;
    inputs.use_jinja = true;
    inputs.messages  = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (present(request, "tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
    }
    inputs.tool_choice         = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
    inputs.json_schema         = request.value("json_schema", "");
    inputs.grammar             = request.value("grammar", "");
    if (!inputs.json_schema.empty() && !inputs.grammar.empty()) {
        fail(LUCEBOX_ERR_ARGUMENT, "json_schema and grammar exclude each other");
    }
    if (!inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE && !inputs.grammar.empty()) {
        fail(LUCEBOX_ERR_ARGUMENT, "tools bring a grammar of their own; they cannot be combined with grammar");
    }
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    inputs.enable_thinking       = request.value("enable_thinking", true);
    inputs.reasoning_format      = common_reasoning_format_from_name(request.value("reasoning_format", "auto"));
    if (present(request, "chat_template_kwargs")) {
        for (const auto & item : request.at("chat_template_kwargs").items()) {
            inputs.chat_template_kwargs[item.key()] = item.value().dump();
        }
    }
    return inputs;
}

common_json triggers_to_json(const std::vector<common_grammar_trigger> & triggers) {
    common_json out = common_json::array();
    for (const auto & trigger : triggers) {
        common_json entry = common_json::object();
        entry["type"]     = (int64_t) trigger.type;
        entry["value"]    = trigger.value;
        entry["token"]    = (int64_t) trigger.token;
        out.push_back(entry);
    }
    return out;
}

common_json params_to_json(const common_chat_params & params, const common_chat_templates_inputs & inputs) {
    common_json out             = common_json::object();
    out["prompt"]               = params.prompt;
    out["format"]               = (int64_t) params.format;
    out["format_name"]          = std::string(common_chat_format_name(params.format));
    out["grammar"]              = params.grammar;
    out["grammar_is_schema"]    = !inputs.json_schema.empty();
    out["grammar_lazy"]         = params.grammar_lazy;
    out["grammar_triggers"]     = triggers_to_json(params.grammar_triggers);
    out["preserved_tokens"]     = params.preserved_tokens;
    out["additional_stops"]     = params.additional_stops;
    out["generation_prompt"]    = params.generation_prompt;
    out["supports_thinking"]    = params.supports_thinking;
    out["thinking_start_tag"]   = params.thinking_start_tag;
    out["thinking_end_tags"]    = params.thinking_end_tags;
    out["parser"]               = params.parser;
    out["reasoning_format"]     = std::string(common_reasoning_format_name(inputs.reasoning_format));
    out["parse_tool_calls"]     = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    return out;
}

} // namespace

} // namespace lucebox

using namespace lucebox;

lucebox_status lucebox_chat_render(const lucebox_model * model, const char * request_json, char ** out_json) {
    return guarded([&] {
        needed(out_json, "out_json");
        const model_state & state = *needed(model, "model").state;
        if (!state.templates) {
            fail(LUCEBOX_ERR_FORMAT, "%s", state.templates_error.c_str());
        }
        const common_json request = parse_object(request_json, "chat request");
        try {
            const auto inputs = read_request(request);
            const auto params = common_chat_templates_apply(state.templates.get(), inputs);
            *out_json         = copy_string(params_to_json(params, inputs).dump_safe());
        } catch (const error &) {
            throw;
        } catch (const std::exception & e) {
            // upstream works out how replies are written by trying the template, whatever the request
            const bool template_only = std::strstr(e.what(), "Unable to generate parser") != nullptr;
            fail(template_only ? LUCEBOX_ERR_FORMAT : LUCEBOX_ERR_ARGUMENT, "the chat request cannot be rendered: %s",
                 e.what());
        }
    });
}

lucebox_status lucebox_chat_parse(const char * render_json, const char * text, bool is_partial, char ** out_json) {
    return guarded([&] {
        needed(out_json, "out_json");
        const common_json render = parse_object(render_json, "render result");
        if (text == nullptr || !present(render, "format")) {
            fail(LUCEBOX_ERR_ARGUMENT, "the text is NULL or the render result is not one of lucebox_chat_render()");
        }
        common_chat_parser_params params;
        try {
            params.format            = (common_chat_format) render.at("format").get<int>();
            params.reasoning_format  = common_reasoning_format_from_name(render.value("reasoning_format", "auto"));
            params.generation_prompt = render.value("generation_prompt", "");
            params.parse_tool_calls  = render.value("parse_tool_calls", false);
            const std::string parser = render.value("parser", "");
            if (!parser.empty()) {
                params.parser.load(parser);
            }
            common_chat_format_name(params.format); // throws for a number that is none
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & e) {
            fail(LUCEBOX_ERR_ARGUMENT, "the render result is not one of lucebox_chat_render(): %s", e.what());
        }
        try {
            const common_chat_msg message = common_chat_parse(text, is_partial, params);
            *out_json                     = copy_string(message.to_json_oaicompat().dump_safe());
        } catch (const std::exception & e) {
            fail(LUCEBOX_ERR_ARGUMENT, "the reply cannot be parsed as %s: %s", common_chat_format_name(params.format),
                 e.what());
        }
    });
}
