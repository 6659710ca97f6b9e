// Bounds on text from outside. Upstream's parsers recurse; text nested deeper than anybody writes would overflow the
// stack, and that ends the process.
#pragma once

#include <string>

namespace lucebox {

// Throws unless `text` nests arrays and objects at most 200 deep. Does not check that it is JSON.
void require_shallow_json(const std::string & text, const char * what);

// Throws unless a GBNF grammar has at most 1 MiB, 10,000 rules, and parentheses at most 200 deep.
void require_tame_grammar(const std::string & text);

} // namespace lucebox
