// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeBIND writes named.conf (BIND 9 Administrator Reference Manual, chapter 8) and returns the arguments
// of named.
func writeBIND(t testing.TB, s *Server, dir string, config Config) []string {
	t.Helper()

	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}

	var b strings.Builder

	fmt.Fprintf(&b, `key "fleet" { algorithm hmac-sha256; secret "%s"; };
key "admin" { algorithm hmac-sha256; secret "%s"; };
controls { };
options {
	directory "%s"; pid-file none; session-keyfile none; managed-keys-directory "%s";
	listen-on port %s { %s; }; listen-on-v6 { none; };
	recursion no; dnssec-validation no; allow-query { any; }; allow-transfer { none; }; notify no;
};
`, s.Key, s.admin, dir, dir, port, host)

	zone := func(name string, keys ...string) {
		fmt.Fprintf(&b, "zone %q {\n\ttype primary; file %q;\n\tupdate-policy {", name, filepath.Join(dir, name+".zone"))

		for _, key := range keys {
			fmt.Fprintf(&b, " grant %s zonesub ANY;", key)
		}

		fmt.Fprint(&b, " };\n\tallow-transfer {")

		for _, key := range keys {
			fmt.Fprintf(&b, " key %s;", key)
		}

		fmt.Fprint(&b, " };\n};\n")
	}

	for _, name := range config.Zones {
		zone(name, "fleet", "admin")
	}

	for _, name := range config.Locked {
		zone(name, "admin")
	}

	file := filepath.Join(dir, "named.conf")
	writeFile(t, file, b.String())

	return []string{"-g", "-n", "1", "-c", file}
}

// writeKnot writes knot.conf (Knot DNS documentation, configuration reference) and returns the arguments of
// knotd.
func writeKnot(t testing.TB, s *Server, dir string, config Config) []string {
	t.Helper()

	database := filepath.Join(dir, "db")
	if err := os.Mkdir(database, 0o700); err != nil {
		t.Fatal(err)
	}

	var b strings.Builder

	fmt.Fprintf(&b, `server:
    listen: %s
    rundir: %s
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
database:
    storage: %s
log:
  - target: stderr
    any: warning
key:
  - id: fleet
    algorithm: hmac-sha256
    secret: %s
  - id: admin
    algorithm: hmac-sha256
    secret: %s
acl:
  - id: fleet
    key: fleet
    action: [update, transfer]
  - id: admin
    key: admin
    action: [update, transfer]
zone:
`, strings.Replace(s.Addr, ":", "@", 1), dir, database, s.Key, s.admin)

	zone := func(name, acl string) {
		fmt.Fprintf(&b, "  - domain: %s\n    storage: %s\n    file: %s.zone\n    acl: [%s]\n", name, dir, name, acl)
	}

	for _, name := range config.Zones {
		zone(name, "fleet, admin")
	}

	for _, name := range config.Locked {
		zone(name, "admin")
	}

	file := filepath.Join(dir, "knot.conf")
	writeFile(t, file, b.String())

	return []string{"-c", file}
}
