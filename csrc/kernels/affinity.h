// Where threads run and memory comes from, by the operating system's own calls. What a system refuses (a container
// without the right, a kernel without nodes) is told by the return value: a speed is lost, never a result.
#pragma once

#include <vector>

namespace headrace::kernels {

// Binds the calling thread to one processor. False when the system refuses.
bool bind_this_thread(int processor);

// Gives the calling thread back every processor the process was started with.
bool release_this_thread();

// From now on the calling thread's new pages come from these nodes, in turns when they are several; an empty list
// restores the default, the node that touches a page first. Threads started later inherit it. False when refused.
bool prefer_nodes(const std::vector<int>& nodes);

}  // namespace headrace::kernels
