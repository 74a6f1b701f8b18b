// The command line of a program whose flags are absl::flags.
//
// absl::ParseCommandLine exits with 1 after --help, and names the folder that
// the program was built in. Asking for help is no error here.
#ifndef ATTENTION_COMMAND_LINE_PROGRAM_FLAGS_H_
#define ATTENTION_COMMAND_LINE_PROGRAM_FLAGS_H_

#include <string>
#include <vector>

namespace attention {

struct Program {
  std::string name;        // e.g. "attention-server"
  std::string usage;       // what --help shows above the flags
  std::string flags_file;  // the end of the path of the file that defines them
};

// As absl::ParseCommandLine: sets the flags, exits with 1 when one is unknown
// or has no value of its type, and returns the other arguments, the program's
// name first. After --help (also --helpshort; --helpfull for absl's own flags
// too) and --version it writes to standard output and exits with 0.
std::vector<char*> ParseProgramFlags(const Program& program, int argc,
                                     char** argv);

}  // namespace attention

#endif  // ATTENTION_COMMAND_LINE_PROGRAM_FLAGS_H_
