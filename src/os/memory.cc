#include "os/memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace kvc {
namespace {

/// Larger mappings are worth large pages.
constexpr std::size_t kLargePagesFrom = std::size_t{4} << 20;

}  // namespace

Result<MappedMemory> MappedMemory::map(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0) return invalid("0 bytes of memory were asked for");
  if (bytes > std::numeric_limits<std::size_t>::max() - page) {
    return Status(Code::kExhausted, std::to_string(bytes) + " bytes of memory are out of range");
  }
  const std::size_t whole = (bytes + page - 1) / page * page;
  void* at = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return Status(Code::kExhausted,
                  "no " + std::to_string(whole) + " bytes of memory: " + std::strerror(errno));
  }
  // Only a hint: without large pages everything works, with more translation misses.
  if (whole >= kLargePagesFrom) (void)::madvise(at, whole, MADV_HUGEPAGE);
  return MappedMemory({static_cast<std::byte*>(at), whole});
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  if (this != &other) {
    unmap();
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedMemory::~MappedMemory() { unmap(); }

void MappedMemory::unmap() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

}  // namespace kvc
