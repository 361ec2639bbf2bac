#include "os/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>

namespace kvc {
namespace {

/// A port of loopback that takes connections and never says a word.
class SilentServer {
 public:
  SilentServer() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(descriptor_, 4), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentServer() { ::close(descriptor_); }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  const int descriptor_;
  std::uint16_t port_ = 0;
};

TEST(Socket, ReadsAddresses) {
  const Result<HostPort> plain = parse_host_port("store.example:50051");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "store.example");
  EXPECT_EQ(plain->port, 50051);
  const Result<HostPort> v6 = parse_host_port("[fe80::1]:7");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "fe80::1");
  EXPECT_EQ(format_host_port(*v6), "[fe80::1]:7");
  EXPECT_EQ(format_host_port(*plain), "store.example:50051");
}

TEST(Socket, RefusesWhatIsNoAddressAndNamesIt) {
  for (const char* text : {"", "host", "host:", ":50051", "host:0", "host:65536", "host:5x",
                           "host:-1", "fe80::1:7", "[]:7", "etcd://a:1,b:2"}) {
    const Result<HostPort> parsed = parse_host_port(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalid);
    EXPECT_NE(parsed.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(Socket, ReadsNumericAddressesWithAndWithoutAPort) {
  const std::map<std::string, HostPort> known = {{"10.0.0.1", {"10.0.0.1", 0}},
                                                 {"10.0.0.1:4000", {"10.0.0.1", 4000}},
                                                 {"::1", {"::1", 0}},
                                                 {"fe80::1%eth0", {"fe80::1%eth0", 0}},
                                                 {"[::1]:4000", {"::1", 4000}}};
  for (const auto& [text, address] : known) {
    const Result<HostPort> parsed = parse_numeric_address(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed->host, address.host);
    EXPECT_EQ(parsed->port, address.port);
  }
  for (const char* text : {"", "node0", "node0:4000", "10.0.0", "10.0.0.1:", "10.0.0.1:0", "[::1]",
                           "0.0.0.0", "::", "224.0.0.1:80", "255.255.255.255", "ff02::1"}) {
    EXPECT_EQ(parse_numeric_address(text).status().code(), Code::kInvalid) << text;
  }
}

TEST(Socket, ReachesAListeningPortEvenIfItsOwnerIsSilent) {
  const SilentServer server;
  const Result<std::string> own = tcp_reach({"127.0.0.1", server.port()}, std::chrono::seconds(5));
  ASSERT_TRUE(own.ok()) << own.status().to_string();
  EXPECT_EQ(*own, "127.0.0.1");
}

TEST(Socket, ClosedPortIsUnavailableAtOnceAndNamed) {
  const Result<std::uint16_t> port = free_tcp_port("127.0.0.1");
  ASSERT_TRUE(port.ok());
  const Result<std::string> own = tcp_reach({"127.0.0.1", *port}, std::chrono::seconds(60));
  ASSERT_FALSE(own.ok());
  EXPECT_EQ(own.status().code(), Code::kUnavailable);
  EXPECT_NE(own.status().message().find("127.0.0.1:" + std::to_string(*port)), std::string::npos);
  EXPECT_NE(own.status().message().find("refused"), std::string::npos) << own.status().message();
}

TEST(Socket, UnresolvableNameIsUnavailable) {
  // Longer than any name may be, so that no name server is asked.
  const std::string host(300, 'x');
  const Result<std::string> own = tcp_reach({host, 1}, std::chrono::seconds(1));
  ASSERT_FALSE(own.ok());
  EXPECT_EQ(own.status().code(), Code::kUnavailable);
  EXPECT_NE(own.status().message().find(host), std::string::npos);
}

TEST(Socket, IsNotInheritedOnceMarked) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
  close_on_exec(descriptor);
  EXPECT_EQ(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ::close(descriptor);
  close_on_exec(-1);  // nothing happens
}

TEST(Socket, FreePortsAreOfThisMachineOnly) {
  const Result<std::uint16_t> port = free_tcp_port("127.0.0.1");
  ASSERT_TRUE(port.ok());
  EXPECT_GT(*port, 0);
  // An address of the documentation range is nobody's.
  const Result<std::uint16_t> foreign = free_tcp_port("192.0.2.1");
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.status().message().find("192.0.2.1"), std::string::npos);
}

}  // namespace
}  // namespace kvc
