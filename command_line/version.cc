#include "command_line/version.h"

namespace attention {

const char kProgramVersion[] = ATTENTION_VERSION;

}  // namespace attention
