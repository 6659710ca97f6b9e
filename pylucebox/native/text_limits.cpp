#include "text_limits.h"

#include "internal.h"

namespace lucebox {

namespace {

const int    MAX_NESTING       = 200;
const size_t MAX_GRAMMAR_BYTES = 1024 * 1024;
const size_t MAX_GRAMMAR_RULES = 10000;

// Deepest nesting of `open` and `close` outside of quoted text. `quotes` are the characters that begin quoted text;
// it ends at the same character, or at ']' for '['.
int nesting(const std::string & text, const char * open, const char * close, const char * quotes) {
    int    depth   = 0;
    int    deepest = 0;
    char   end     = 0; // of the quoted text we are in
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (end != 0) {
            if (c == '\\') {
                ++i;
            } else if (c == end) {
                end = 0;
            }
        } else if (std::strchr(quotes, c) != nullptr && c != '\0') {
            end = c == '[' ? ']' : c;
        } else if (std::strchr(open, c) != nullptr && c != '\0') {
            deepest = std::max(deepest, ++depth);
        } else if (std::strchr(close, c) != nullptr && c != '\0') {
            --depth;
        }
    }
    return deepest;
}

} // namespace

void require_shallow_json(const std::string & text, const char * what) {
    const int depth = nesting(text, "[{", "]}", "\"");
    if (depth > MAX_NESTING) {
        fail(LUCEBOX_ERR_ARGUMENT, "the %s is nested %d deep; at most %d is taken", what, depth, MAX_NESTING);
    }
}

void require_tame_grammar(const std::string & text) {
    if (text.size() > MAX_GRAMMAR_BYTES) {
        fail(LUCEBOX_ERR_ARGUMENT, "the grammar has %zu bytes; at most %zu are taken", text.size(), MAX_GRAMMAR_BYTES);
    }
    const int depth = nesting(text, "(", ")", "\"[");
    if (depth > MAX_NESTING) {
        fail(LUCEBOX_ERR_ARGUMENT, "the grammar nests parentheses %d deep; at most %d is taken", depth, MAX_NESTING);
    }
    size_t n_rules = 0;
    for (size_t at = text.find("::="); at != std::string::npos; at = text.find("::=", at + 3)) {
        ++n_rules;
    }
    if (n_rules > MAX_GRAMMAR_RULES) {
        fail(LUCEBOX_ERR_ARGUMENT, "the grammar has %zu rules; at most %zu are taken", n_rules, MAX_GRAMMAR_RULES);
    }
}

} // namespace lucebox
