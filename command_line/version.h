// The version of all programs.
#ifndef ATTENTION_COMMAND_LINE_VERSION_H_
#define ATTENTION_COMMAND_LINE_VERSION_H_

namespace attention {

extern const char kProgramVersion[];  // e.g. "0.1.0"

}  // namespace attention

#endif  // ATTENTION_COMMAND_LINE_VERSION_H_
