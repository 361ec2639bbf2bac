#include "kvc/settings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "os/file.h"
#include "settings/edit_distance.h"

namespace kvc {
namespace {

using Map = std::map<std::string, std::string>;

/// Settings with a backend, so that the warning about a missing one stays out of the way.
SettingsInput input_of(Map environment) {
  SettingsInput input;
  input.environment = std::move(environment);
  input.environment.emplace("MC_BACKEND", "memory");
  return input;
}

SettingsInput with_file(std::string name, std::string text, Map environment = {}) {
  SettingsInput input = input_of(std::move(environment));
  input.file_name = std::move(name);
  input.file_text = std::move(text);
  return input;
}

Settings parsed(const SettingsInput& input) {
  Result<Settings> settings = Settings::parse(input);
  if (!settings.ok()) ADD_FAILURE() << settings.status().to_string();
  return settings.ok() ? std::move(settings).value() : *Settings::parse({});
}

void expect_refused(const SettingsInput& input, const std::string& part,
                    Code code = Code::kInvalid) {
  const Result<Settings> settings = Settings::parse(input);
  ASSERT_FALSE(settings.ok()) << part;
  EXPECT_EQ(settings.status().code(), code);
  EXPECT_NE(settings.status().message().find(part), std::string::npos)
      << settings.status().message();
}

TEST(SettingTable, IsConsistent) {
  std::set<std::string_view> names;
  for (const SettingSpec& spec : setting_table()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " stands twice";
    EXPECT_TRUE(spec.name.starts_with(spec.foreign ? "MOONCAKE_" : "MC_")) << spec.name;
    EXPECT_TRUE(spec.doc.ends_with('.')) << spec.name;
    EXPECT_EQ(spec.choices.empty(), spec.type != SettingType::kChoice) << spec.name;
    const bool bounded = spec.type != SettingType::kText && spec.type != SettingType::kChoice;
    EXPECT_EQ(spec.maximum > 0, bounded) << spec.name;
    EXPECT_LE(spec.minimum, spec.maximum) << spec.name;
  }
}

TEST(SettingTable, EveryRowIsOnThePageOfSettings) {
  const Result<std::string> page =
      read_file(std::string(KVC_SOURCE_DIR) + "/docs/source/settings.md", 1u << 20);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  for (const SettingSpec& spec : setting_table()) {
    const std::size_t row = page->find("| `" + std::string(spec.name) + "` |");
    ASSERT_NE(row, std::string::npos) << spec.name;
    const std::string line = page->substr(row, page->find('\n', row) - row);
    EXPECT_NE(line.find("| " + std::string(spec.doc) + " |"), std::string::npos) << line;
    if (!spec.default_value.empty()) {
      EXPECT_NE(line.find("| `" + std::string(spec.default_value) + "` |"), std::string::npos);
    }
  }
}

TEST(Settings, DefaultsAreInForceWithoutAnyInput) {
  const Settings settings = parsed({});
  EXPECT_EQ(settings.text("MC_BACKEND"), "file");
  EXPECT_EQ(settings.number("MC_FILE_MAX_BYTES"), std::uint64_t{8} << 30);
  EXPECT_EQ(settings.text("MC_PROMISE"), "staged");
  EXPECT_FALSE(settings.flag("MC_LAYER_GRANULARITY"));
  EXPECT_EQ(settings.number("MC_KEY_EPOCH"), 0u);
  EXPECT_EQ(settings.number("MC_STAGING_BYTES"), 256u << 20);
  EXPECT_EQ(settings.duration("MC_LOAD_DEADLINE_MS"), std::chrono::seconds(4));
  EXPECT_EQ(settings.text("MOONCAKE_TE_META_DATA_SERVER"), "P2PHANDSHAKE");
  EXPECT_EQ(settings.number("MOONCAKE_GLOBAL_SEGMENT_SIZE"), 0u);
  EXPECT_FALSE(settings.has_value("MC_RANK"));
  EXPECT_FALSE(settings.has_value("MC_MODEL_REVISION"));
  for (const SettingSpec& spec : setting_table()) {
    EXPECT_EQ(settings.source(spec.name), SettingSource::kDefault) << spec.name;
  }
}

TEST(Settings, DefaultCallbacksStayBelowFiveSeconds) {
  const Settings settings = parsed({});
  EXPECT_LT(settings.duration("MC_LOAD_DEADLINE_MS"), std::chrono::seconds(5));
  EXPECT_LT(settings.duration("MC_STAGE_DEADLINE_MS"), std::chrono::seconds(5));
}

TEST(Settings, TheStrongestSourceWinsAndIsRemembered) {
  SettingsInput input = with_file("x.toml", "MC_KEY_EPOCH = 2\nMC_STAGE_DEADLINE_MS = 20\n",
                                  {{"MC_KEY_EPOCH", "3"}, {"MC_LOAD_DEADLINE_MS", "30"}});
  Settings settings = parsed(input);
  EXPECT_EQ(settings.number("MC_KEY_EPOCH"), 3u);
  EXPECT_EQ(settings.source("MC_KEY_EPOCH"), SettingSource::kEnvironment);
  EXPECT_EQ(settings.duration("MC_STAGE_DEADLINE_MS"), std::chrono::milliseconds(20));
  EXPECT_EQ(settings.source("MC_STAGE_DEADLINE_MS"), SettingSource::kFile);
  input.overrides = {{"MC_KEY_EPOCH", "4"}};
  settings = parsed(input);
  EXPECT_EQ(settings.number("MC_KEY_EPOCH"), 4u);
  EXPECT_EQ(settings.source("MC_KEY_EPOCH"), SettingSource::kOverride);
  EXPECT_EQ(settings.source("MC_PROMISE"), SettingSource::kDefault);
}

TEST(Settings, AnEmptyVariableCountsAsUnset) {
  const Settings settings = parsed(input_of({{"MC_KEY_EPOCH", ""}, {"MC_MODEL_REVISION", ""}}));
  EXPECT_EQ(settings.source("MC_KEY_EPOCH"), SettingSource::kDefault);
  EXPECT_FALSE(settings.has_value("MC_MODEL_REVISION"));
}

TEST(Settings, SizesHaveUnits) {
  const std::map<std::string, std::uint64_t> sizes = {
      {"4096", 4096},        {" 8192 ", 8192},      {"64KB", 64u << 10},   {"64kb", 64u << 10},
      {"64KiB", 64u << 10},  {"64k", 64u << 10},    {"1MB", 1u << 20},     {"1 MiB", 1u << 20},
      {"1GiB", 1u << 30},    {"1.5GB", 3ull << 29}, {"0.5g", 1u << 29},    {"1TB", 1ull << 40},
      {"1048576b", 1048576}, {"4097.9", 4097},      {"1048576.b", 1048576}};
  for (const auto& [text, bytes] : sizes) {
    const Settings settings =
        parsed(input_of({{"MC_STAGING_BYTES", text}, {"MC_SAVE_QUEUE_BYTES", "0"}}));
    EXPECT_EQ(settings.number("MC_STAGING_BYTES"), bytes) << text;
  }
}

TEST(Settings, WrongSizesAreRefused) {
  for (const char* text : {"x",
                           "MB",
                           "-1",
                           "-64MB",
                           "64XB",
                           "64MBB",
                           "1e9",
                           "0x1000",
                           "64 M B",
                           "1.2.3MB",
                           ".",
                           "nan",
                           "inf",
                           "4095",
                           "2TB",
                           "18446744073709551615",
                           "18446744073709551616",
                           "99999999999999999999GB",
                           "16777216TB",
                           "64MB x"}) {
    expect_refused(input_of({{"MC_STAGING_BYTES", text}}),
                   "MC_STAGING_BYTES is '" + std::string(text) +
                       "' (environment): it is not a size in bytes from 4096 to 1099511627776");
  }
}

TEST(Settings, WrongNumbersAreRefusedWithNameValueAndBounds) {
  for (const char* text : {"x", "-1", "+1", "1.0", "1e3", "0x10", "9223372036854775808", "1 2"}) {
    expect_refused(input_of({{"MC_KEY_EPOCH", text}}),
                   "MC_KEY_EPOCH is '" + std::string(text) +
                       "' (environment): it is not a whole number from 0 to 9223372036854775807");
  }
  for (const char* text : {"0", "60001", "10ms", "1s"}) {
    expect_refused(input_of({{"MC_STAGE_DEADLINE_MS", text}}),
                   "is not a number of milliseconds from 1 to 60000");
  }
  EXPECT_EQ(parsed(input_of({{"MC_KEY_EPOCH", "9223372036854775807"}})).number("MC_KEY_EPOCH"),
            9223372036854775807u);
}

TEST(Settings, BooleansAreReadInTheUsualSpellings) {
  for (const char* text : {"1", "true", "TRUE", "Yes", "on", " 1 "}) {
    EXPECT_TRUE(parsed(input_of({{"MC_LAYER_GRANULARITY", text}})).flag("MC_LAYER_GRANULARITY"));
  }
  for (const char* text : {"0", "false", "no", "OFF"}) {
    EXPECT_FALSE(parsed(input_of({{"MC_LAYER_GRANULARITY", text}})).flag("MC_LAYER_GRANULARITY"));
  }
  expect_refused(input_of({{"MC_LAYER_GRANULARITY", "2"}}), "is neither 1 (true, yes, on) nor 0");
}

TEST(Settings, ChoicesAreChecked) {
  EXPECT_EQ(parsed(input_of({{"MC_PROMISE", "Leased"}})).text("MC_PROMISE"), "leased");
  EXPECT_EQ(parsed(input_of({{"MC_PROMISE", "staged"}})).text("MC_PROMISE"), "staged");
  expect_refused(input_of({{"MC_PROMISE", "firm"}}),
                 "MC_PROMISE is 'firm' (environment): it is none of: leased,staged");
  EXPECT_EQ(parsed(input_of({{"MC_BACKEND", "File"}})).text("MC_BACKEND"), "file");
  expect_refused(input_of({{"MC_PROMISE", "|"}}), "it is none of");
  expect_refused(input_of({{"MC_PROMISE", "lease"}}), "it is none of");
}

TEST(Settings, MetricsAreOffAndLocalUnlessAskedFor) {
  const Settings silent = parsed(input_of({}));
  EXPECT_EQ(silent.number("MC_METRICS_PORT"), 0u);
  EXPECT_EQ(silent.text("MC_METRICS_HOST"), "127.0.0.1");
  EXPECT_EQ(parsed(input_of({{"MC_METRICS_PORT", "9090"}})).number("MC_METRICS_PORT"), 9090u);
  expect_refused(input_of({{"MC_METRICS_PORT", "65536"}}), "MC_METRICS_PORT");
}

TEST(Settings, StagedPromisesThatLayersRuleOutAreSaid) {
  EXPECT_TRUE(parsed(input_of({{"MC_LAYER_GRANULARITY", "1"}})).warnings().empty());
  EXPECT_TRUE(parsed(input_of({{"MC_PROMISE", "staged"}})).warnings().empty());
  EXPECT_TRUE(parsed(input_of({{"MC_LAYER_GRANULARITY", "1"}, {"MC_PROMISE", "leased"}}))
                  .warnings()
                  .empty());
  const Settings settings =
      parsed(input_of({{"MC_LAYER_GRANULARITY", "1"}, {"MC_PROMISE", "Staged"}}));
  ASSERT_EQ(settings.warnings().size(), 1u);
  EXPECT_EQ(settings.warnings()[0],
            "MC_PROMISE=staged (environment) has no effect: promises are leased, because of "
            "MC_LAYER_GRANULARITY=1");
}

TEST(Settings, TheBackendFollowsFromTheStore) {
  SettingsInput input;
  Settings settings = parsed(input);
  EXPECT_EQ(settings.text("MC_BACKEND"), "file");
  EXPECT_TRUE(settings.warnings().empty());
  input.environment = {{"MOONCAKE_MASTER", "10.0.0.1:50051"}};
  settings = parsed(input);
  EXPECT_EQ(settings.text("MC_BACKEND"), "mooncake");
  EXPECT_TRUE(settings.warnings().empty());
  input.environment = {{"MOONCAKE_CONFIG_PATH", "/etc/mooncake.json"}};
  EXPECT_EQ(parsed(input).text("MC_BACKEND"), "mooncake");
  input.environment = {{"MOONCAKE_MASTER", "10.0.0.1:50051"}, {"MC_BACKEND", "memory"}};
  settings = parsed(input);
  EXPECT_EQ(settings.text("MC_BACKEND"), "memory");
  EXPECT_TRUE(settings.warnings().empty());
  expect_refused(input_of({{"MC_BACKEND", "mooncake"}}), "set MOONCAKE_MASTER to host:port");
}

TEST(Settings, TheStoresOwnFileReplacesTheEnvironment) {
  SettingsInput input;
  input.environment = {{"MOONCAKE_CONFIG_PATH", "/etc/mooncake.json"},
                       {"MOONCAKE_MASTER", "ignored:1"},
                       {"MOONCAKE_DEVICE", "ignored"}};
  input.store_file_name = "/etc/mooncake.json";
  input.store_file_text = R"({"local_hostname": "node1", "metadata_server": "http://m/metadata",
      "master_server_address": "m:50051", "protocol": "RDMA", "global_segment_size": "1gb",
      "local_buffer_size": 5, "enable_ssd_offload": true, "tenant_id": 7, "device_name": null})";
  const Settings settings = parsed(input);
  EXPECT_EQ(settings.text("MOONCAKE_MASTER"), "m:50051");
  EXPECT_EQ(settings.source("MOONCAKE_MASTER"), SettingSource::kStoreFile);
  EXPECT_EQ(settings.text("MOONCAKE_LOCAL_HOSTNAME"), "node1");
  EXPECT_EQ(settings.text("MOONCAKE_PROTOCOL"), "rdma");
  EXPECT_EQ(settings.number("MOONCAKE_GLOBAL_SEGMENT_SIZE"), 1u << 30);
  EXPECT_EQ(settings.text("MOONCAKE_TENANT_ID"), "7");
  EXPECT_FALSE(settings.has_value("MOONCAKE_DEVICE"));
  ASSERT_EQ(settings.warnings().size(), 2u);
  EXPECT_NE(settings.warnings()[0].find("MOONCAKE_MASTER is not used"), std::string::npos);

  input.overrides = {{"MOONCAKE_MASTER", "call:1"}};
  EXPECT_EQ(parsed(input).text("MOONCAKE_MASTER"), "call:1");
  input.overrides.clear();
  input.store_file_text = "{}";
  expect_refused(input, "file '/etc/mooncake.json' of MOONCAKE_CONFIG_PATH names no master");
  input.store_file_text = "{x";
  expect_refused(input, "file '/etc/mooncake.json' of MOONCAKE_CONFIG_PATH cannot be read: parse ");
  input.store_file_text = R"({"master_server_address": ["a"]})";
  expect_refused(input, "master_server_address is an array");
}

TEST(Settings, AMisspelledFieldOfTheStoresFileIsNamed) {
  SettingsInput input;
  input.environment = {{"MOONCAKE_CONFIG_PATH", "/etc/mooncake.json"}};
  input.store_file_name = "/etc/mooncake.json";
  input.store_file_text = R"({"master_server_addres": "m:50051"})";
  expect_refused(input,
                 "set its field master_server_address to host:port; it has the unknown field "
                 "'master_server_addres'; did you mean master_server_address?");
  input.store_file_text =
      R"({"master_server_address": "m:50051", "device_nam": "eth0", "local_buffer_size": 5})";
  const Settings settings = parsed(input);
  ASSERT_EQ(settings.warnings().size(), 1u);
  EXPECT_EQ(settings.warnings()[0],
            "file '/etc/mooncake.json' of MOONCAKE_CONFIG_PATH has the unknown field 'device_nam'; "
            "did you mean device_name?");
}

TEST(Settings, ASectionInAFileIsNamedAsWhatItIs) {
  SettingsInput input;
  input.file_name = "kv.toml";
  input.file_text = "[kv]\nMC_KEY_EPOCH = 1\n";
  expect_refused(input,
                 "has the unknown setting 'kv', a section: settings stand in one flat table");
}

TEST(Settings, FilesAreReadAsTomlAndAsJson) {
  const std::string toml =
      "# comment\nMC_MODEL_REVISION = \"r1\"\nMC_STAGING_BYTES = \"64MB\"\n"
      "MC_LAYER_GRANULARITY = false\nMC_KEY_EPOCH = 5\nMC_MEMORY_BYTES = 1048576\n";
  const std::string json =
      R"({"MC_MODEL_REVISION": "r1", "MC_STAGING_BYTES": "64MB", "MC_LAYER_GRANULARITY": false,)"
      R"( "MC_KEY_EPOCH": 5, "MC_MEMORY_BYTES": 1048576})";
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"a.toml", toml}, {"a.json", json}, {"plain", toml}, {"plain", json}}) {
    const Settings settings = parsed(with_file(name, text));
    EXPECT_EQ(settings.text("MC_MODEL_REVISION"), "r1") << name;
    EXPECT_EQ(settings.number("MC_STAGING_BYTES"), 64u << 20) << name;
    EXPECT_EQ(settings.number("MC_KEY_EPOCH"), 5u) << name;
    EXPECT_EQ(settings.number("MC_MEMORY_BYTES"), 1u << 20) << name;
    EXPECT_EQ(settings.source("MC_MEMORY_BYTES"), SettingSource::kFile) << name;
  }
  EXPECT_TRUE(Settings::parse(with_file("empty.toml", "")).ok());
}

TEST(Settings, UnknownNamesInTheFileNameTheNearest) {
  expect_refused(with_file("a.toml", "MC_BACKENT = \"memory\""),
                 "settings file 'a.toml' has the unknown setting 'MC_BACKENT'; did you mean "
                 "MC_BACKEND?");
  expect_refused(with_file("a.json", R"({"mc_promise": "leased"})"), "did you mean MC_PROMISE?");
  expect_refused(with_file("a.json", R"({"staging_bytes": 1})"), "did you mean MC_STAGING_BYTES?");
  expect_refused(with_file("a.toml", "[MC_KEY]\nEPOCH = 1\n"), "unknown setting 'MC_KEY'");
  SettingsInput input = input_of({});
  input.overrides = {{"MC_KEY_EPOC", "1"}};
  expect_refused(input, "did you mean MC_KEY_EPOCH?");
}

TEST(Settings, AnUnknownNameThatIsNearNoneGetsNoSuggestion) {
  for (const char* name : {"FOO", "MC_FOO", "tensor_parallel_size"}) {
    const Result<Settings> settings =
        Settings::parse(with_file("a.toml", std::string(name) + " = 1"));
    ASSERT_FALSE(settings.ok());
    EXPECT_EQ(settings.status().message(),
              "settings file 'a.toml' has the unknown setting '" + std::string(name) + "'");
  }
}

TEST(Settings, IllTypedValuesInTheFileAreRefused) {
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = \"5\""),
                 "MC_KEY_EPOCH is the string \"5\" (settings file 'a.toml'): it must be a whole "
                 "number");
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = 5.0"), "MC_KEY_EPOCH is a fraction");
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = true"), "MC_KEY_EPOCH is 'true'");
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = -5"), "MC_KEY_EPOCH is '-5'");
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = 1979-05-27"), "is a date or time");
  expect_refused(with_file("a.toml", "[MC_KEY_EPOCH]\na = 1"), "is a table");
  expect_refused(with_file("a.json", R"({"MC_MODEL_REVISION": 5})"), "it must be a string");
  expect_refused(with_file("a.json", R"({"MC_MODEL_REVISION": null})"),
                 "MC_MODEL_REVISION is null");
  expect_refused(with_file("a.json", R"({"MC_PROMISE": {}})"), "MC_PROMISE is an object");
  expect_refused(with_file("a.json", R"({"MC_LAYER_GRANULARITY": "1"})"), "must be true or false");
  expect_refused(with_file("a.json", R"({"MC_LAYER_GRANULARITY": 2})"), "is neither 1");
  expect_refused(with_file("a.json", R"({"MC_STAGING_BYTES": [1]})"), "is an array");
  expect_refused(with_file("a.json", R"({"MC_KV_CONFIG": "b.json"})"), "set it in the environment");
}

TEST(Settings, BrokenFilesAreRefusedWithTheirName) {
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = = 5"),
                 "settings file 'a.toml' cannot be read");
  expect_refused(with_file("a.toml", "MC_KEY_EPOCH = 1\nMC_KEY_EPOCH = 2"), "a.toml");
  expect_refused(with_file("a.json", R"({"MC_KEY_EPOCH": 1, "MC_KEY_EPOCH": 2})"),
                 "'MC_KEY_EPOCH' stands there twice");
  expect_refused(with_file("a.json", "[]"), "holds no JSON object");
  expect_refused(with_file("a.json", "{"), "settings file 'a.json' cannot be read");
  expect_refused(with_file("a.json", ""), "settings file 'a.json' cannot be read");
  expect_refused(with_file("a.json", "{\"\xff\": 1}"), "settings file 'a.json' cannot be read");
  expect_refused(with_file("a.toml", "# " + std::string(1u << 20, 'x')), "larger than 1 MiB");
}

TEST(Settings, NearMissesOfOurNamesInTheEnvironmentWarn) {
  for (const auto& [wrong, right] : Map{{"MC_BACKENT", "MC_BACKEND"},
                                        {"MC_BAKCEND", "MC_BACKEND"},
                                        {"mc_backend", "MC_BACKEND"},
                                        {"MC_RNAK", "MC_RANK"},
                                        {"MC_KEY_EPOC", "MC_KEY_EPOCH"},
                                        {"MC_STAGING_BYTE", "MC_STAGING_BYTES"},
                                        {"MC_WORLDSIZE", "MC_WORLD_SIZE"},
                                        {"MC_MODEL_REVISON", "MC_MODEL_REVISION"},
                                        {"MC_MODEL_REV", "MC_MODEL_REVISION"},
                                        {"MC_STAGE_DEADLINE", "MC_STAGE_DEADLINE_MS"},
                                        {"mc_stage_deadline", "MC_STAGE_DEADLINE_MS"},
                                        {"MC_STAGE_ADDR", "MC_STAGE_ADDRESS"},
                                        {"MC_STAGE_BYTES", "MC_STAGING_BYTES"},
                                        {"MC_STAGING", "MC_STAGING_BYTES"},
                                        {"MC_PREFILL_TOK_S", "MC_PREFILL_TOK_PER_S"},
                                        {"MC_PREFILL_TOKENS_PER_S", "MC_PREFILL_TOK_PER_S"},
                                        {"MC_PROMISE_MODE", "MC_PROMISE"},
                                        {"MC_LOAD_DEADLINE", "MC_LOAD_DEADLINE_MS"},
                                        {"MC_SAVE_QUEUE", "MC_SAVE_QUEUE_BYTES"},
                                        {"MC_KEY_SECRET", "MC_KEY_SECRET_FILE"},
                                        {"MC_FILE_DIR", "MC_FILE_PATH"},
                                        {"MC_MIN_HIT", "MC_MIN_HIT_BLOCKS"},
                                        {"MOONCAKE_MASTR", "MOONCAKE_MASTER"},
                                        {"MOONCAKE_MSATER", "MOONCAKE_MASTER"}}) {
    const Settings settings = parsed(input_of({{wrong, "x"}}));
    ASSERT_EQ(settings.warnings().size(), 1u) << wrong;
    EXPECT_EQ(settings.warnings()[0].find("environment variable " + wrong + " is not known"), 0u)
        << settings.warnings()[0];
    EXPECT_TRUE(settings.warnings()[0].ends_with("did you mean " + right + "?"))
        << settings.warnings()[0];
  }
}

TEST(Settings, NamesOfTheStoresClientDoNotWarn) {
  const Result<std::string> names =
      read_file(std::string(KVC_SOURCE_DIR) + "/src/settings/testdata/foreign_names.txt", 1u << 16);
  ASSERT_TRUE(names.ok()) << names.status().to_string();
  Map environment;
  std::string name;
  for (const char letter : *names) {
    if (letter == '\n') {
      environment[name] = "1";
      name.clear();
    } else {
      name += letter;
    }
  }
  ASSERT_GT(environment.size(), 150u);
  const Settings settings = parsed(input_of(environment));
  for (const std::string& warning : settings.warnings()) ADD_FAILURE() << warning;
}

TEST(Settings, OtherProgramsVariablesDoNotWarn) {
  const Settings settings = parsed(input_of({{"PATH", "/bin"},
                                             {"PMI_RANK", "0"},
                                             {"RANK", "0"},
                                             {"WORLD_SIZE", "2"},
                                             {"HOME", "/"},
                                             {"M", "1"},
                                             {"MC", "1"},
                                             {"MCA_RANK", "0"},
                                             {"", "1"}}));
  for (const std::string& warning : settings.warnings()) ADD_FAILURE() << warning;
}

TEST(Settings, TheSaveQueueFitsIntoTheStagingMemory) {
  Settings settings = parsed(input_of({{"MC_STAGING_BYTES", "64MB"}}));
  EXPECT_EQ(settings.number("MC_SAVE_QUEUE_BYTES"), 32u << 20);
  EXPECT_EQ(settings.source("MC_SAVE_QUEUE_BYTES"), SettingSource::kDefault);
  settings = parsed(input_of({{"MC_STAGING_BYTES", "64MB"}, {"MC_SAVE_QUEUE_BYTES", "64MB"}}));
  EXPECT_EQ(settings.number("MC_SAVE_QUEUE_BYTES"), 64u << 20);
  expect_refused(input_of({{"MC_STAGING_BYTES", "64MB"}, {"MC_SAVE_QUEUE_BYTES", "65MB"}}),
                 "MC_SAVE_QUEUE_BYTES is 68157440, more than MC_STAGING_BYTES, 67108864");
}

TEST(Settings, RanksBeyondTheWorldAreRefused) {
  const Settings settings = parsed(input_of({{"MC_RANK", "1"}, {"MC_WORLD_SIZE", "2"}}));
  EXPECT_EQ(settings.number("MC_RANK"), 1u);
  EXPECT_EQ(settings.number("MC_WORLD_SIZE"), 2u);
  expect_refused(input_of({{"MC_RANK", "2"}, {"MC_WORLD_SIZE", "2"}}),
                 "MC_RANK is 2 and MC_WORLD_SIZE is 2: ranks count from 0 to 1");
  expect_refused(input_of({{"MC_WORLD_SIZE", "0"}}), "from 1 to 65536");
}

TEST(Settings, ARankWithoutItsWorldIsRefusedAndTheOtherWayRound) {
  expect_refused(input_of({{"MC_RANK", "3"}}),
                 "MC_RANK is '3' (environment) and MC_WORLD_SIZE is not set");
  expect_refused(input_of({{"MC_WORLD_SIZE", "3"}}),
                 "MC_WORLD_SIZE is '3' (environment) and MC_RANK is not set");
  expect_refused(with_file("a.toml", "MC_RANK = 0"), "(file) and MC_WORLD_SIZE is not set");
  EXPECT_TRUE(
      parsed(with_file("a.toml", "MC_WORLD_SIZE = 2", {{"MC_RANK", "1"}})).has_value("MC_RANK"));
}

TEST(Settings, AStageAddressThatNoRankCanConnectToIsRefused) {
  for (const char* text : {"10.0.0.1", "10.0.0.1:4000", "::1", "[::1]:4000"}) {
    EXPECT_EQ(parsed(input_of({{"MC_STAGE_ADDRESS", text}})).text("MC_STAGE_ADDRESS"), text);
  }
  for (const std::string text :
       {"node0", "node0:4000", "0.0.0.0", "10.0.0.1:0", "224.0.0.1", "::"}) {
    expect_refused(input_of({{"MC_STAGE_ADDRESS", text}}),
                   "MC_STAGE_ADDRESS is '" + text + "' (environment): it is no numeric address");
    expect_refused(with_file("a.toml", "MC_STAGE_ADDRESS = '" + text + "'"), "(file): it is no");
  }
}

TEST(Settings, DescribeShowsValuesWithSourcesAndMasksCredentials) {
  const Settings settings = parsed(input_of(
      {{"MOONCAKE_TE_META_DATA_SERVER", "http://user:pass@host/metadata"}, {"MC_KEY_EPOCH", "7"}}));
  std::map<std::string, std::string> lines;
  for (const SettingLine& line : settings.describe()) {
    lines[line.name] = line.value + " (" + std::string(to_string(line.source)) + ")";
  }
  EXPECT_EQ(lines.at("MC_KEY_EPOCH"), "7 (environment)");
  EXPECT_EQ(lines.at("MC_PROMISE"), "staged (default)");
  EXPECT_EQ(lines.at("MOONCAKE_TE_META_DATA_SERVER"), "http://***@host/metadata (environment)");
  EXPECT_FALSE(lines.contains("MC_RANK"));
  EXPECT_EQ(settings.text("MOONCAKE_TE_META_DATA_SERVER"), "http://user:pass@host/metadata");
}

TEST(SettingsDeathTest, ANameThatIsNotInTheTableIsAProgramError) {
  const Settings settings = parsed({});
  EXPECT_DEATH(static_cast<void>(settings.text("MC_NOTHING")), "not in the table");
  EXPECT_DEATH(static_cast<void>(settings.number("MC_BACKEND")), "read as another type");
  EXPECT_DEATH(static_cast<void>(settings.text("MC_KEY_EPOCH")), "read as another type");
  EXPECT_DEATH(static_cast<void>(settings.duration("MC_KEY_EPOCH")), "read as another type");
  EXPECT_DEATH(static_cast<void>(settings.flag("MC_KEY_EPOCH")), "read as another type");
}

TEST(EditDistance, CountsChangesWithoutRegardToCase) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "ABC"), 0u);
  EXPECT_EQ(edit_distance("abc", "abd"), 1u);
  EXPECT_EQ(edit_distance("abc", "acb"), 1u);
  EXPECT_EQ(edit_distance("abcd", "badc"), 2u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace kvc
