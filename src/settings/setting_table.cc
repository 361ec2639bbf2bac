// The table. docs/source/settings.md repeats it for people; a test compares the two.
#include <algorithm>
#include <array>

#include "kvc/settings.h"

namespace kvc {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kTiB = 1ull << 40;
constexpr std::uint64_t kMinuteMs = 60000;
constexpr std::uint64_t kWeekMs = 10080 * kMinuteMs;
/// What both file formats can express.
constexpr std::uint64_t kInteger = (1ull << 63) - 1;

constexpr SettingSpec text(std::string_view name, std::string_view default_value,
                           std::string_view doc) {
  SettingSpec spec;
  spec.name = name;
  spec.default_value = default_value;
  spec.doc = doc;
  return spec;
}

constexpr SettingSpec choice(std::string_view name, std::string_view default_value,
                             std::string_view choices, std::string_view doc) {
  SettingSpec spec = text(name, default_value, doc);
  spec.type = SettingType::kChoice;
  spec.choices = choices;
  return spec;
}

struct Bounds {
  std::uint64_t minimum;
  std::uint64_t maximum;
};

constexpr SettingSpec number(std::string_view name, SettingType type,
                             std::string_view default_value, Bounds bounds, std::string_view doc) {
  SettingSpec spec = text(name, default_value, doc);
  spec.type = type;
  spec.minimum = bounds.minimum;
  spec.maximum = bounds.maximum;
  return spec;
}

constexpr SettingSpec foreign(SettingSpec spec, std::string_view store_file_field) {
  spec.foreign = true;
  spec.store_file_field = store_file_field;
  return spec;
}

// What is shared with others, and how much is moved in what time.
constexpr auto kSharing = std::to_array<SettingSpec>({
    choice("MC_BACKEND", "", "memory|file|mooncake",
           "Where blocks are: in this process, in a folder that this host shares, in Mooncake. "
           "Unset: mooncake if MOONCAKE_MASTER or MOONCAKE_CONFIG_PATH is set, else file."),
    choice(
        "MC_PROMISE", "staged", "leased|staged",
        "When blocks are fetched. staged: before they are promised, by every rank, and verified; "
        "a load then depends on no store. leased: probe, promise, load; an error if a promised "
        "block is gone by then; always so with MC_LAYER_GRANULARITY."),
    number("MC_LAYER_GRANULARITY", SettingType::kBoolean, "0", {0, 1},
           "1: each layer of a block is an object of its own, so that a pass can begin while later "
           "layers load. Needs num_hidden_layers in config.json; equal for all who share blocks."),
    text("MC_MODEL_REVISION", "",
         "What the model is, if its files cannot tell or need not be read. Change it with the "
         "weights."),
    text("MC_KEY_SECRET_FILE", "",
         "File with a secret that is mixed into every key, so that keys cannot be computed from a "
         "prompt alone. All instances that share blocks need the same one."),
    number("MC_KEY_EPOCH", SettingType::kInteger, "0", {0, kInteger},
           "Raise it after an update of the weights: all older keys become unreachable."),
    text("MC_LORA_IDS", "",
         "File that maps LoRA task ids to content identities. Requests with an id that it does not "
         "name bypass the connector."),
    number("MC_STAGING_BYTES", SettingType::kBytes, "256MB", {4096, kTiB},
           "Host memory through which blocks pass, registered with the store."),
    number("MC_STAGE_DEADLINE_MS", SettingType::kMilliseconds, "1000", {1, kMinuteMs},
           "Time that the queries of one scheduler step may spend on the store, all together, with "
           "what is staged for them."),
    number("MC_PREFILL_TOK_PER_S", SettingType::kInteger, "0", {0, 1000000000},
           "Prompt tokens that the engine computes in a second. Blocks that would take longer to "
           "fetch, counting what waits for it, are computed instead. 0: whatever is stored is "
           "fetched."),
    number("MC_MIN_HIT_BLOCKS", SettingType::kInteger, "1", {1, 1000000},
           "Shorter hits are left; the engine computes them."),
    text("MC_STAGE_ADDRESS", "",
         "Numeric address of rank 0's host, with or without a port, by which ranks on other hosts "
         "reach their scheduler. Unset: all ranks are on one host and use a Unix socket."),
    number("MC_LOAD_DEADLINE_MS", SettingType::kMilliseconds, "4000", {1, 10 * kMinuteMs},
           "Time that loading the promised blocks of one step may take, and each call that fetches "
           "blocks ahead of a promise."),
    number("MC_SAVE_QUEUE_BYTES", SettingType::kBytes, "128MB", {0, kTiB},
           "Bytes of snapshots that may wait to be stored; beyond it the newest save is dropped. "
           "At most MC_STAGING_BYTES; the default is lowered to half of that where needed. 0: "
           "nothing is saved."),
});

// Copies, where each back end keeps its blocks, and how the process runs.
constexpr auto kRunning = std::to_array<SettingSpec>({
    number("MC_REPLICATION_MAX", SettingType::kInteger, "2", {1, 8},
           "Copies that a block may have in the store, so that storage processes may be lost. What "
           "is asked for seldom has one. 1: no replication. Only Mooncake keeps several."),
    number(
        "MC_REPLICATION_HEAT", SettingType::kInteger, "8", {1, 1000000},
        "Requests for a prefix, decaying, from which its blocks get a second copy; twice as many "
        "for each further one."),
    number("MC_REPLICATION_HALF_LIFE_MS", SettingType::kMilliseconds, "600000", {1, kWeekMs},
           "Time in which a request loses half of its weight."),
    number("MC_REPLICATION_BYTES_PER_S", SettingType::kBytes, "64MB", {0, kTiB},
           "Bytes of stored blocks that each rank has copied per second, at most. 0: stored blocks "
           "get no copies, only new ones do."),
    text("MC_REPLICATION_ADMIN", "",
         "host:port of the admin pages of Mooncake's master, which name the storage processes. "
         "Unset: the master's host, port 9003."),
    number("MC_MEMORY_BYTES", SettingType::kBytes, "4GB", {kMiB, 16 * kTiB},
           "Capacity of the memory backend; the least recently used blocks make room."),
    text("MC_FILE_PATH", "",
         "Folder of the file backend: absolute, local, of this user alone; made if need be. "
         "Unset: /dev/shm/mooncake-kv-UID, or in /tmp where /dev/shm cannot be written."),
    number("MC_FILE_MAX_BYTES", SettingType::kBytes, "8GB", {kMiB, 1024 * kTiB},
           "Space of all blocks in the folder; the least recently used make room. Less where the "
           "file system has less: a twentieth of it, at most 1 GiB, is left free."),
    text("MC_DISABLE_FILE", "",
         "A path: while something is there, the connector neither looks up nor saves."),
    number("MC_METRICS_PORT", SettingType::kInteger, "0", {0, 65535},
           "Port of metrics for Prometheus; plus r in a process whose lowest rank is r. 0: none."),
    text("MC_METRICS_HOST", "127.0.0.1",
         "Address of that port. 0.0.0.0: other machines reach it too, without any protection."),
    number("MC_RANK", SettingType::kInteger, "", {0, 65535},
           "This process's rank; goes before what a launcher says."),
    number("MC_WORLD_SIZE", SettingType::kInteger, "", {1, 65536},
           "Number of ranks; goes before what a launcher says."),
    text("MC_KV_CONFIG", "", "File with settings, TOML or JSON. Only in the environment."),
});

// Of the store's client, which defines their meaning.
constexpr auto kStoreClients = std::to_array<SettingSpec>({
    foreign(text("MOONCAKE_MASTER", "", "Address of Mooncake's master, host:port."),
            "master_server_address"),
    foreign(text("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE",
                 "P2PHANDSHAKE, or the address of a metadata server, http://.../metadata."),
            "metadata_server"),
    foreign(text("MOONCAKE_PROTOCOL", "tcp", "Transport: tcp, rdma or another that Mooncake has."),
            "protocol"),
    foreign(text("MOONCAKE_DEVICE", "", "Network device, for rdma."), "device_name"),
    foreign(number("MOONCAKE_GLOBAL_SEGMENT_SIZE", SettingType::kBytes, "0", {0, 16 * kTiB},
                   "Memory that this process gives to the store. 0: storage is a process of its "
                   "own, so that blocks outlive this one."),
            "global_segment_size"),
    foreign(text("MOONCAKE_LOCAL_HOSTNAME", "localhost",
                 "Name or address by which other nodes reach this one."),
            "local_hostname"),
    foreign(text("MOONCAKE_TENANT_ID", "default", "Tenant within the store."), "tenant_id"),
    foreign(text("MOONCAKE_CONFIG_PATH", "",
                 "Mooncake's own configuration file (JSON). Its fields replace the MOONCAKE_* "
                 "variables above."),
            ""),
});

constexpr auto kTable = [] {
  std::array<SettingSpec, kSharing.size() + kRunning.size() + kStoreClients.size()> all;
  auto end = std::ranges::copy(kSharing, all.begin()).out;
  end = std::ranges::copy(kRunning, end).out;
  std::ranges::copy(kStoreClients, end);
  return all;
}();

}  // namespace

std::span<const SettingSpec> setting_table() { return kTable; }

}  // namespace kvc
