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

// callTimeout limits one Erlang call. The call takes milliseconds on an idle host.
const callTimeout = 2 * time.Minute

// MatchNothing is a regular expression that matches no name of a queue or exchange.
const MatchNothing = "^$"

// User is a user with permissions in the vhost /.
type User struct {
	Name, Password string
	// Configure, Write and Read are regular expressions. The user may configure, write and read the
	// resources whose names match. An empty expression matches all names.
	Configure, Write, Read string
}

// writeDefinitions writes the users and their permissions to RabbitMQ's definitions file, and returns the
// path of the file.
func (s *Server) writeDefinitions(t testing.TB, all []User) string {
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

	writeFile(t, s.path("definitions.json"), string(out))

	return s.path("definitions.json")
}

// SetUsers adds users to a server, or changes their passwords and permissions, and closes their
// connections. The server must have been started with users.
func (s *Server) SetUsers(t testing.TB, users ...User) {
	t.Helper()

	var names []string
	for _, user := range users {
		names = append(names, fmt.Sprintf("<<%q>>", user.Name))
	}

	s.callMu.Lock()
	defer s.callMu.Unlock()

	s.callErlang(t, fmt.Sprintf("{ok, Text} = file:read_file(%q), ok = rabbit_definitions:import_raw(Text), %s",
		s.writeDefinitions(t, users), newCloseExpression("user", names...)))
}

// TLSListener is a port on which a server accepts TLS connections. It no longer exists after the
// server was killed.
type TLSListener struct {
	// URL is the URL for clients, without a user.
	URL string

	server *Server
	port   int
	cert   *Cert
}

// ListenTLS makes a server listen on another port with TLS. If clients is not nil, the server requires a
// client certificate of that CA.
func (s *Server) ListenTLS(t testing.TB, cert *Cert, clients *CA) *TLSListener {
	t.Helper()

	dir, port := loopback.SocketFolder(t), loopback.Port(t)
	d := &TLSListener{
		URL: "amqps://" + loopbackAddress(port) + "/", server: s, port: port,
		cert: &Cert{CA: cert.CA, File: dir + "/cert.pem", KeyFile: dir + "/key.pem"},
	}
	d.copyCertificate(t, cert)

	options := fmt.Sprintf("{certfile, %q}, {keyfile, %q}", d.cert.File, d.cert.KeyFile)
	if clients != nil {
		options += fmt.Sprintf(", {cacertfile, %q}, {verify, verify_peer}, {fail_if_no_peer_cert, true}", clients.File)
	}

	s.callMu.Lock()
	defer s.callMu.Unlock()

	s.callErlang(t, fmt.Sprintf(`{ok, _} = application:ensure_all_started(ssl), ok = rabbit_networking:start_ssl_listener(`+
		`{"127.0.0.1", %d}, [%s], 10).`, port, options))

	return d
}

// ReplaceCertificate replaces the certificate of the listener, and closes its connections.
func (d *TLSListener) ReplaceCertificate(t testing.TB, cert *Cert) {
	t.Helper()
	d.copyCertificate(t, cert)
	d.server.callMu.Lock()
	defer d.server.callMu.Unlock()

	d.server.callErlang(t, "ssl:clear_pem_cache(), "+newCloseExpression("port", strconv.Itoa(d.port)))
}

// copyCertificate overwrites the certificate and key files of the listener.
func (d *TLSListener) copyCertificate(t testing.TB, cert *Cert) {
	t.Helper()

	for from, to := range map[string]string{cert.File: d.cert.File, cert.KeyFile: d.cert.KeyFile} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}

		writeFile(t, to, string(text))
	}
}

// SetAlarm raises or clears an alarm, as if the server had no memory left. While it lasts, the server does not
// read from connections that publish.
func (s *Server) SetAlarm(t testing.TB, isOn bool) {
	t.Helper()

	action := "clear_alarm({resource_limit, memory, node()})"
	if isOn {
		action = "set_alarm({{resource_limit, memory, node()}, []})"
	}

	s.callMu.Lock()
	defer s.callMu.Unlock()
	s.callErlang(t, "rabbit_alarm:"+action+".")
}

// newCloseExpression returns an Erlang expression that closes all connections for which the item of
// rabbit_networking:connection_info has one of the values. The expression ignores errors, because a
// connection may close before it is processed.
func newCloseExpression(item string, values ...string) string {
	return fmt.Sprintf(`lists:foreach(fun(C) -> (catch case lists:member(`+
		`proplists:get_value(%s, rabbit_networking:connection_info(C, [%s])), [%s]) `+
		`of true -> rabbit_networking:close_connection(C, "changed"); false -> ok end) end, rabbit_networking:connections()).`,
		item, item, strings.Join(values, ", "))
}

// callErlang evaluates an Erlang expression on the server. The caller must hold callMu, because all calls
// use the same Erlang node name.
func (s *Server) callErlang(t testing.TB, expression string) {
	t.Helper()

	cookie, err := os.ReadFile(s.path(".erlang.cookie"))
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()

	// The cookie is not a secret here, because anyone who can read process arguments can also read the file.
	cmd := exec.CommandContext(ctx, "erl_call", "-c", strings.TrimSpace(string(cookie)), "-n", s.nodeName(), "-e")
	cmd.Stdin, cmd.Dir, cmd.Env = strings.NewReader(expression+"\n"), s.dir, s.environment()

	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "{ok, ") {
		t.Fatalf("call RabbitMQ: %v: %s", err, out)
	}
}
