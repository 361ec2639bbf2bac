#include "keyspace/weight_sample.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "keyspace/safetensors.h"
#include "os/file.h"

namespace kvc {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kWholeTensorBytes = 4096;
constexpr std::uint64_t kTensorSampleBytes = 1024;
constexpr std::uint64_t kStride = 4 * kMiB;
constexpr std::uint64_t kStrideSampleBytes = 4096;

/// Feeds ranges of one file to one digest.
class FileDigester {
 public:
  explicit FileDigester(const RandomAccessFile& file) : file_(file), buffer_(kMiB) {}

  Status add(std::uint64_t offset, std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t now = std::min<std::uint64_t>(bytes, buffer_.size());
      const std::span<std::byte> part(buffer_.data(), static_cast<std::size_t>(now));
      Status status = file_.read_at(offset, part);
      if (!status.ok()) return status;
      hash_.add(part);
      offset += now;
      bytes -= now;
    }
    return {};
  }

  void add_number(std::uint64_t value) {
    std::array<std::byte, sizeof(value)> bytes;
    put_le(bytes.data(), value);
    hash_.add(bytes);
  }

  Sha256Digest take() { return hash_.take(); }

 private:
  const RandomAccessFile& file_;
  std::vector<std::byte> buffer_;
  Sha256 hash_;
};

Status add_tensor(std::uint64_t offset, std::uint64_t bytes, FileDigester* digester) {
  if (bytes <= kWholeTensorBytes) return digester->add(offset, bytes);
  const std::uint64_t last = bytes - kTensorSampleBytes;
  for (const std::uint64_t place : {std::uint64_t{0}, last / 3, last / 3 * 2, last}) {
    Status status = digester->add(offset + place, kTensorSampleBytes);
    if (!status.ok()) return status;
  }
  return {};
}

Status malformed(const std::filesystem::path& path, const std::string& why) {
  return invalid("weight file '" + path.string() + "': " + why +
                 "; state what the model is with MC_MODEL_REVISION if the file is as it should be");
}

Status add_safetensors(const std::filesystem::path& path, const RandomAccessFile& file,
                       FileDigester* digester) {
  std::array<std::byte, sizeof(std::uint64_t)> length;
  if (file.bytes() < length.size()) return malformed(path, "it is too short for a header");
  Status status = file.read_at(0, length);
  if (!status.ok()) return status;
  const auto header_bytes = get_le<std::uint64_t>(length.data());
  const std::uint64_t behind_length = file.bytes() - length.size();
  if (header_bytes > std::min(kSafetensorsHeaderBytesMax, behind_length)) {
    return malformed(path, "its header claims " + std::to_string(header_bytes) + " bytes of " +
                               std::to_string(behind_length));
  }
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  status = file.read_at(length.size(),
                        std::as_writable_bytes(std::span<char>(header.data(), header.size())));
  if (!status.ok()) return status;
  const auto ranges = parse_safetensors_header(header, behind_length - header_bytes);
  if (!ranges.ok()) return malformed(path, ranges.status().message());
  const std::uint64_t data_at = length.size() + header_bytes;
  status = digester->add(0, data_at);
  for (const ByteRange& range : *ranges) {
    if (!status.ok()) break;
    status = add_tensor(data_at + range.first, range.end - range.first, digester);
  }
  return status;
}

Status add_any(const RandomAccessFile& file, FileDigester* digester) {
  if (file.bytes() <= 2 * kMiB) return digester->add(0, file.bytes());
  Status status = digester->add(0, kMiB);
  // Places inside the first and the last MiB are read twice, which costs nothing.
  for (std::uint64_t at = kStride; at < file.bytes() - kMiB && status.ok(); at += kStride) {
    status = digester->add(at, kStrideSampleBytes);
  }
  if (status.ok()) status = digester->add(file.bytes() - kMiB, kMiB);
  return status;
}

}  // namespace

Result<Sha256Digest> digest_file(const std::filesystem::path& path) {
  const Result<RandomAccessFile> file = RandomAccessFile::open(path);
  if (!file.ok()) return file.status();
  FileDigester digester(*file);
  Status status = digester.add(0, file->bytes());
  if (!status.ok()) return status;
  return digester.take();
}

Result<Sha256Digest> digest_samples(const std::filesystem::path& path) {
  const Result<RandomAccessFile> file = RandomAccessFile::open(path);
  if (!file.ok()) return file.status();
  FileDigester digester(*file);
  digester.add_number(file->bytes());
  Status status = path.extension() == ".safetensors" ? add_safetensors(path, *file, &digester)
                                                     : add_any(*file, &digester);
  if (!status.ok()) return status;
  return digester.take();
}

}  // namespace kvc
