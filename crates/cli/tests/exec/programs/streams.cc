// Streams on files and on the standard descriptors, mixed with those of C.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

int main(int, char **arguments) {
    std::ofstream out(arguments[1]);
    out << "from a stream " << 7 << "\n";
    out.close();
    std::ifstream in(arguments[1]);
    std::string line, word;
    std::getline(in, line);
    std::cout << line << std::endl;
    std::cerr << "to the error stream\n";
    while (std::cin >> word) std::cout << word << "\n";
    std::printf("mixed\n");
    std::cout << "last\n";
}
