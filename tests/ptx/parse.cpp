/* From the text of a kernel to statements whose operands are offsets: registers in a register file of 32
 * lanes, variables in shared, local or parameter memory. Only what nvcc writes is understood; all else is an
 * Error. */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

namespace ptx
{

size_t type_size(Type type)
{
    static const uint8_t sizes[] = {0, 0, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
    return sizes[type];
}

namespace
{

struct Register {
    int32_t at;
    uint8_t size;
};

bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("_.$%:", c) != NULL);
}

class Parser
{
  public:
    Parser(const std::string &text, size_t begin) : text_(text), at_(begin)
    {
    }
    Source kernel();

  private:
    std::string peek();
    std::string next();
    bool accept(const char *token);
    void expect(const char *token);
    void skip_statement();
    int64_t integer();
    void parameters();
    void registers();
    void variable(size_t *bytes, bool with_offset);
    void statement(std::string word);
    void body();
    Operand operand();
    Operand name_operand(const std::string &word);
    int64_t table(const std::string &name);
    Operand address();
    const Register *find(const std::string &name) const;

    const std::string &text_;
    size_t at_;
    int line_ = 1;
    Source out_;
    std::vector<std::map<std::string, Register>> scopes_;
    std::map<std::string, int64_t> variables_; /* their addresses */
};

std::string Parser::peek()
{
    const size_t at = at_;
    const int line = line_;
    std::string token = next();
    at_ = at;
    line_ = line;
    return token;
}

std::string Parser::next()
{
    for (; at_ < text_.size(); at_++) {
        if (text_.compare(at_, 2, "//") == 0)
            at_ = text_.find('\n', at_);
        if (text_[at_] == '\n')
            line_++;
        else if (!strchr(" \t\r", text_[at_]))
            break;
    }
    if (at_ >= text_.size())
        fail("the text ends within a kernel");
    const size_t begin = at_;
    if (text_[at_] == '"')
        at_ = text_.find('"', at_ + 1) + 1;
    else if (!is_word(text_[at_]))
        at_++;
    else
        while (is_word(text_[at_]))
            at_++;
    return text_.substr(begin, at_ - begin);
}

bool Parser::accept(const char *token)
{
    if (peek() != token)
        return false;
    next();
    return true;
}

void Parser::expect(const char *token)
{
    std::string got = next();
    if (got != token)
        fail("line %d of %s: '%s' where '%s' is expected", line_, out_.kernel.name.c_str(), got.c_str(),
             token);
}

void Parser::skip_statement()
{
    while (next() != ";") {
    }
}

int64_t Parser::integer()
{
    const bool negative = accept("-");
    std::string word = next();
    const int64_t value = (int64_t)strtoull(word.c_str(), NULL, 0);
    return negative ? -value : value;
}

/* .param [.align N] .TYPE name[bytes], ... */
void Parser::parameters()
{
    expect("(");
    while (!accept(")")) {
        size_t align = 1, size = 0;
        expect(".param");
        if (accept(".align"))
            align = (size_t)integer();
        std::string type = next();
        size = strtoull(type.c_str() + 2, NULL, 10) / 8;
        align = align > size ? align : size;
        std::string name = next();
        if (accept("[")) {
            size *= (size_t)integer();
            expect("]");
        }
        size_t &bytes = out_.kernel.parameter_bytes;
        bytes = (bytes + align - 1) / align * align;
        variables_[name] = (int64_t)bytes;
        bytes += size;
        accept(",");
    }
}

/* .reg .TYPE name; or name<count>; */
void Parser::registers()
{
    std::string type = next();
    const uint8_t size = type == ".pred" ? 0 : (uint8_t)(strtoul(type.c_str() + 2, NULL, 10) / 8);
    const size_t slot = size == 0 ? 64 : (size_t)size * LANES;
    do {
        std::string name = next();
        int64_t count = 1;
        const bool many = accept("<");
        if (many) {
            count = integer();
            expect(">");
        }
        for (int64_t i = 0; i < count; i++) {
            scopes_.back()[many ? name + std::to_string(i) : name] = {(int32_t)out_.kernel.register_bytes,
                                                                      size};
            out_.kernel.register_bytes += slot;
        }
    } while (accept(","));
    expect(";");
}

/* .align N .b8 name[bytes]; an extern variable has no size and begins behind the others. */
void Parser::variable(size_t *bytes, bool with_offset)
{
    size_t align = 1;
    if (accept(".align"))
        align = (size_t)integer();
    std::string type = next();
    size_t size = strtoull(type.c_str() + 2, NULL, 10) / 8;
    std::string name = next();
    if (accept("[")) {
        size *= (size_t)integer();
        expect("]");
    }
    expect(";");
    *bytes = (*bytes + align - 1) / align * align;
    variables_[name] = with_offset ? (int64_t)*bytes : 0;
    *bytes += size;
}

const Register *Parser::find(const std::string &name) const
{
    for (size_t i = scopes_.size(); i-- > 0;) {
        auto found = scopes_[i].find(name);
        if (found != scopes_[i].end())
            return &found->second;
    }
    return NULL;
}

Operand Parser::name_operand(const std::string &word)
{
    Operand out;
    const Register *reg = find(word);
    if (reg != NULL) {
        out.kind = Operand::REGISTER;
        out.at = reg->at;
        out.size = reg->size;
    } else if (variables_.count(word) != 0) {
        out.number = variables_[word];
    } else if (word[0] == '$') {
        out.kind = Operand::LABEL;
        out.name = word;
    } else if (word.compare(0, 2, "0f") == 0 || word.compare(0, 2, "0d") == 0) {
        out.number = (int64_t)strtoull(word.c_str() + 2, NULL, 16); /* "Floating-Point Constants" */
    } else if (word[0] >= '0' && word[0] <= '9') {
        out.number = (int64_t)strtoull(word.c_str(), NULL, 0);
    } else if (word == "tsr_dynamic_shared_memory") {
        out.number =
            (int64_t)((out_.kernel.shared_bytes + 15) / 16 * 16); /* static variables were declared before */
    } else {
        out.number = table(word);
    }
    return out;
}

/* The address of a variable of the module: .global .align N .b8 name[bytes] = {byte, ...}; */
int64_t Parser::table(const std::string &name)
{
    const std::string declared = " " + name + "[";
    const size_t at = text_.find(declared), begin = text_.rfind('\n', at) + 1;
    if (at == std::string::npos || text_.compare(begin, 8, ".global ") != 0)
        fail("line %d of %s: unknown name %s", line_, out_.kernel.name.c_str(), name.c_str());
    std::vector<uint8_t> &tables = out_.kernel.tables;
    tables.resize((tables.size() + 255) / 256 * 256);
    variables_[name] = (int64_t)(TABLES_WINDOW + tables.size());
    const char *byte = strchr(text_.c_str() + at, '{');
    do {
        char *end;
        tables.push_back((uint8_t)strtoul(byte + 1, &end, 10));
        byte = end;
    } while (*byte == ',');
    if (strncmp(byte, "};", 2) != 0)
        fail("%s is no table of bytes", name.c_str());
    return variables_[name];
}

Operand Parser::address()
{
    Operand out = name_operand(next());
    if (out.kind == Operand::NUMBER)
        out.at = -1;
    out.kind = Operand::ADDRESS;
    if (accept("+"))
        out.number += integer();
    expect("]");
    return out;
}

Operand Parser::operand()
{
    if (accept("["))
        return address();
    if (accept("{")) {
        Operand out;
        out.kind = Operand::VECTOR;
        do
            out.members.push_back(operand());
        while (accept(","));
        expect("}");
        return out;
    }
    if (accept("-")) {
        Operand out;
        out.number = -(int64_t)strtoull(next().c_str(), NULL, 0);
        return out;
    }
    Operand out = name_operand(next());
    if (accept("|")) { /* the second result of shfl */
        Operand both;
        both.kind = Operand::VECTOR;
        both.members = {out, name_operand(next())};
        return both;
    }
    return out;
}

void Parser::statement(std::string word)
{
    Statement s;
    if (word == "@") {
        s.guard_not = accept("!");
        const Register *guard = find(next());
        if (guard == NULL || guard->size != 0)
            fail("line %d of %s: a guard that is no predicate", line_, out_.kernel.name.c_str());
        s.guard = guard->at;
        word = next();
    }
    s.line = line_;
    for (size_t begin = 0, end; begin <= word.size(); begin = end + 1) {
        end = word.find('.', begin);
        end = end == std::string::npos ? word.size() : end;
        s.words.push_back(word.substr(begin, end - begin));
    }
    if (!accept(";")) {
        do
            s.operands.push_back(operand());
        while (accept(","));
        expect(";");
    }
    out_.statements.push_back(s);
}

void Parser::body()
{
    expect("{");
    scopes_.push_back({});
    while (scopes_.size() > 1) { /* 1: only the special registers are left */
        const std::string word = next();
        if (word == "{")
            scopes_.push_back({});
        else if (word == "}")
            scopes_.pop_back();
        else if (word == ".reg")
            registers();
        else if (word == ".shared")
            variable(&out_.kernel.shared_bytes, true);
        else if (word == ".local")
            variable(&out_.kernel.local_bytes, true);
        else if (word == ".pragma")
            skip_statement();
        else if (word[0] == '.')
            fail("line %d of %s: unknown directive %s", line_, out_.kernel.name.c_str(), word.c_str());
        else if (word.back() == ':')
            out_.labels[word.substr(0, word.size() - 1)] = (int)out_.statements.size();
        else
            statement(word);
    }
}

Source Parser::kernel()
{
    static const char *const specials[SPECIALS] = {
        "%tid.x",   "%tid.y",   "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z", "%ctaid.x",
        "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};
    scopes_.push_back({});
    for (int i = 0; i < SPECIALS; i++)
        scopes_[0][specials[i]] = {i * (int)SLOT, 4};
    out_.kernel.register_bytes = (size_t)SPECIALS * (size_t)SLOT;
    expect(".entry");
    out_.kernel.name = next();
    parameters();
    while (peek() != "{") {
        std::string word = next();
        if (word == ".maxntid") {
            unsigned n = 1;
            do
                n *= (unsigned)integer();
            while (accept(","));
            out_.kernel.max_threads = n;
        }
    }
    body();
    return out_;
}

} // namespace

std::map<std::string, size_t> find_kernels(const std::string &text)
{
    std::map<std::string, size_t> found;
    for (size_t at = text.find(".entry "); at != std::string::npos; at = text.find(".entry ", at + 1)) {
        size_t begin = at + strlen(".entry "), end = text.find('(', begin);
        found[text.substr(begin, end - begin)] = at;
    }
    return found;
}

Source parse(const std::string &text, size_t begin)
{
    return Parser(text, begin).kernel();
}

} // namespace ptx
