// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// callTimeout is for what takes milliseconds on a machine with nothing else to do.
const callTimeout = 2 * time.Minute

// Nothing is the expression that no name matches.
const Nothing = "^$"

// User may do everything in the vhost / that is not said here.
type User struct {
	Name, Password string
	// Configure, Write and Read are expressions that the names of what it may configure,
	// write and read match; empty: all.
	Configure, Write, Read string
}

// define writes RabbitMQ's users and what they may do, and gives the file.
func (s *Server) define(t testing.TB, all []User) string {
	t.Helper()

	type object = map[string]any

	users, permissions := []object{}, []object{}

	for _, user := range all {
		users = append(users, object{"name": user.Name, "password": user.Password, "tags": ""})
		permissions = append(permissions, object{
			"user": user.Name, "vhost": "/",
			"configure": cmp.Or(user.Configure, ".*"), "write": cmp.Or(user.Write, ".*"), "read": cmp.Or(user.Read, ".*"),
		})
	}

	out, err := json.Marshal(object{
		"users": users, "vhosts": []object{{"name": "/"}, {"name": "closed"}}, "permissions": permissions,
	})
	if err != nil {
		t.Fatal(err)
	}

	write(t, s.in("definitions.json"), string(out))

	return s.in("definitions.json")
}

// Users adds users to a server that has some, or gives them other passwords and permissions,
// and ends their connections.
func (s *Server) Users(t testing.TB, users ...User) {
	t.Helper()

	var names []string
	for _, user := range users {
		names = append(names, fmt.Sprintf("<<%q>>", user.Name))
	}

	s.calling.Lock()
	defer s.calling.Unlock()

	s.call(t, fmt.Sprintf("{ok, Text} = file:read_file(%q), ok = rabbit_definitions:import_raw(Text), %s",
		s.define(t, users), endAll("user", names...)))
}

// Door is a port of a server with TLS. It is gone when the server is killed.
type Door struct {
	// URL that clients connect to, without a user.
	URL string

	s    *Server
	port int
	own  *Cert
}

// Open has a server listen with TLS, and ask for certificates of a CA if there is one.
func (s *Server) Open(t testing.TB, cert *Cert, clients *CA) *Door {
	t.Helper()

	dir, port := shortDir(t), loopback.Port(t)
	d := &Door{
		URL: "amqps://" + local(port) + "/", s: s, port: port,
		own: &Cert{CA: cert.CA, File: dir + "/cert.pem", KeyFile: dir + "/key.pem"},
	}
	d.copy(t, cert)

	options := fmt.Sprintf("{certfile, %q}, {keyfile, %q}", d.own.File, d.own.KeyFile)
	if clients != nil {
		options += fmt.Sprintf(", {cacertfile, %q}, {verify, verify_peer}, {fail_if_no_peer_cert, true}", clients.File)
	}

	s.calling.Lock()
	defer s.calling.Unlock()

	s.call(t, fmt.Sprintf(`{ok, _} = application:ensure_all_started(ssl), ok = rabbit_networking:start_ssl_listener(`+
		`{"127.0.0.1", %d}, [%s], 10).`, port, options))

	return d
}

// Change gives the door another certificate, and ends the connections through it.
func (d *Door) Change(t testing.TB, cert *Cert) {
	t.Helper()
	d.copy(t, cert)
	d.s.calling.Lock()
	defer d.s.calling.Unlock()

	d.s.call(t, "ssl:clear_pem_cache(), "+endAll("port", strconv.Itoa(d.port)))
}

// copy puts a certificate where the door has its own.
func (d *Door) copy(t testing.TB, cert *Cert) {
	t.Helper()

	for from, to := range map[string]string{cert.File: d.own.File, cert.KeyFile: d.own.KeyFile} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}

		write(t, to, string(text))
	}
}

// endAll is the expression that ends connections whose item is one of the values. One may end by
// itself in between.
func endAll(item string, values ...string) string {
	return fmt.Sprintf(`lists:foreach(fun(C) -> (catch case lists:member(`+
		`proplists:get_value(%s, rabbit_networking:connection_info(C, [%s])), [%s]) `+
		`of true -> rabbit_networking:close_connection(C, "changed"); false -> ok end) end, rabbit_networking:connections()).`,
		item, item, strings.Join(values, ", "))
}

// call has the server evaluate an expression of Erlang, one at a time: those that call go by one name.
func (s *Server) call(t testing.TB, expression string) {
	t.Helper()

	cookie, err := os.ReadFile(s.in(".erlang.cookie"))
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()

	// The cookie is no secret: who may read the arguments of processes here may read the file.
	cmd := exec.CommandContext(ctx, "erl_call", "-c", strings.TrimSpace(string(cookie)), "-n", s.name(), "-e")
	cmd.Stdin, cmd.Dir, cmd.Env = strings.NewReader(expression+"\n"), s.dir, s.environment()

	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "{ok, ") {
		t.Fatalf("call RabbitMQ: %v: %s", err, out)
	}
}
