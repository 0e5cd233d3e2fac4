// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Setup is what a broker asks of its clients. The zero value asks nothing of them.
type Setup struct {
	// Cert is the server's, which then speaks TLS alone.
	Cert *Cert
	// ClientCA has the server ask for certificates of that CA.
	ClientCA *CA
	// Users that are let in, and nobody else. None: guest.
	Users []User
	// Extra lines of the server's configuration.
	Extra string
}

// User may do everything that is not said here.
type User struct {
	Name, Password string
	// Configure, Write and Read are expressions that the names of what it may configure,
	// write and read match; empty: all.
	Configure, Write, Read string
}

// Nothing is the expression that no name matches.
const Nothing = "^$"

func (s Setup) open() bool { return s.Cert == nil && len(s.Users) == 0 && s.Extra == "" }

// rabbit is the server's configuration.
func (s Setup) rabbit(port int, definitions string) string {
	var text strings.Builder

	// Tests fill disks that are small.
	text.WriteString("disk_free_limit.absolute = 10MB\nvm_memory_high_watermark.absolute = 512MB\n")

	if s.Cert == nil {
		fmt.Fprintf(&text, "listeners.tcp.1 = %s\n", local(port))
	} else {
		authority := s.Cert.CA
		if s.ClientCA != nil {
			authority = s.ClientCA
		}

		fmt.Fprintf(&text, "listeners.tcp = none\nlisteners.ssl.1 = %s\nssl_options.cacertfile = %s\nssl_options.certfile = %s\n"+
			"ssl_options.keyfile = %s\nssl_options.verify = %s\nssl_options.fail_if_no_peer_cert = %t\n",
			local(port), authority.File, s.Cert.File, s.Cert.KeyFile,
			map[bool]string{true: "verify_peer", false: "verify_none"}[s.ClientCA != nil], s.ClientCA != nil)
	}

	if len(s.Users) > 0 {
		fmt.Fprintf(&text, "load_definitions = %s\n", definitions)
	}

	text.WriteString(s.Extra)

	return text.String()
}

// definitions are RabbitMQ's users and what they may do in the vhost /.
func (s Setup) definitions(t testing.TB) string {
	t.Helper()

	type object = map[string]any

	users, permissions := []object{}, []object{}

	for _, user := range s.Users {
		users = append(users, object{"name": user.Name, "password": user.Password, "tags": ""})
		permissions = append(permissions, object{
			"user": user.Name, "vhost": "/",
			"configure": orAll(user.Configure), "write": orAll(user.Write), "read": orAll(user.Read),
		})
	}

	out, err := json.Marshal(object{
		"users": users, "vhosts": []object{{"name": "/"}, {"name": "closed"}}, "permissions": permissions,
	})
	if err != nil {
		t.Fatal(err)
	}

	return string(out)
}

func orAll(expression string) string {
	if expression == "" {
		return ".*"
	}

	return expression
}
