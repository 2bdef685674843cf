// For each pattern on standard input, one a line: "error" when std::regex does not take it, else whether it is found in
// the name given as argument, as llama.cpp looks for -ot patterns in tensor names.
#include <iostream>
#include <regex>
#include <string>

int main(int, char **argv) {
    for (std::string pattern; std::getline(std::cin, pattern);) {
        try {
            std::cout << std::regex_search(argv[1], std::regex(pattern)) << '\n';
        } catch (const std::regex_error &) {
            std::cout << "error\n";
        }
    }
}
