// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package brokers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// callTimeout is for what takes milliseconds on a machine with nothing else to do.
const callTimeout = 2 * time.Minute

// own copies a certificate to where the server has its own, so that another one can take its
// place.
func (n *rabbitNode) own(t testing.TB, cert *Cert) *Cert {
	t.Helper()

	out := &Cert{CA: cert.CA, File: filepath.Join(n.dir, "cert.pem"), KeyFile: filepath.Join(n.dir, "key.pem")}

	for from, to := range map[string]string{cert.File: out.File, cert.KeyFile: out.KeyFile} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}

		write(t, to, string(text))
	}

	return out
}

// change has the server that runs take users, permissions and certificate from another setup,
// and end all connections.
func (n *rabbitNode) change(t testing.TB, setup Setup) {
	t.Helper()
	n.write(t, setup)

	// A server without users of its own reads no definitions either when it starts.
	load := ""
	if len(setup.Users) > 0 {
		load = fmt.Sprintf("{ok, Text} = file:read_file(%q), ok = rabbit_definitions:import_raw(Text), ",
			filepath.Join(n.dir, definitionsFile))
	}

	// A connection may end by itself in between.
	n.call(t, load+`ssl:clear_pem_cache(), lists:foreach(fun(C) -> (catch rabbit_networking:close_connection(C, "changed")) end, `+
		`rabbit_networking:connections()).`)
}

// call has the server evaluate an expression of Erlang.
func (n *rabbitNode) call(t testing.TB, expression string) {
	t.Helper()

	cookie, err := os.ReadFile(filepath.Join(n.dir, ".erlang.cookie"))
	if err != nil {
		t.Fatal(err)
	}

	// The cookie is no secret: who may read the arguments of processes here may read the file.
	out, err := n.erlang(t, expression+"\n", "erl_call", "-c", strings.TrimSpace(string(cookie)), "-n", n.name(), "-e")
	if err != nil || !strings.HasPrefix(out, "{ok, ") {
		t.Fatalf("call RabbitMQ: %v: %s", err, out)
	}
}

// erlang runs a program of Erlang's as the server runs.
func (n *rabbitNode) erlang(t testing.TB, input, program string, args ...string) (string, error) {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Dir = strings.NewReader(input), n.dir
	cmd.Env = append(os.Environ(), "HOME="+n.dir, "ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT="+strconv.Itoa(n.epmd))

	out, err := cmd.CombinedOutput()

	return string(out), err
}
