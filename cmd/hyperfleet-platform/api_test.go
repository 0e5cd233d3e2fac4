// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/api"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

func TestAPIConfigurationsThatAreNotValid(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"nothing":       {"", nil, []string{"database.url_file"}},
		"unknown field": {"database:\n  url_file: /x\n  urlfile: /y\n", nil, []string{":3:", "urlfile"}},
		"half of TLS":   {"database: {url_file: /x}\nserver: {tls_cert_file: /c}\n", nil, []string{"tls_cert_file", "tls_key_file"}},
		"no issuer":     {"database: {url_file: /x}\nserver: {jwt: {configs: [{jwk_cert_url: http://x}]}}\n", nil, []string{"server.jwt.configs", "issuer_url"}},
		"issuers": {
			"database: {url_file: /x}\nserver:\n  jwt:\n    configs:\n    - {issuer_url: i, jwk_cert_url: http://x, jwk_cert_file: /y}\n" +
				"    - {issuer_url: i, jwk_cert_file: /y, jwk_cert_ca_file: /z}\nroles: [{role: admin, values: [a]}, {role: admin, values: [a], issuer: j}]\n", nil,
			[]string{"one of them", "it is there twice", "goes with jwk_cert_url", "roles[0]: issuer", "it is none of server.jwt.configs"},
		},
		"tenants": {
			"database: {url_file: /x}\nserver:\n  tenant:\n    system_header: S\n    dimensions:\n    - {key: a, claim: c}\n    - {key: a, header: s}\n    - {claim: c, header: H}\n", nil,
			[]string{"set server.jwt", "dimensions[1]: key", "dimensions[1]: header", "dimensions[2]: set claim or header", "one has to be required", "all_tenants"},
		},
		"a tenant of none": {"database: {url_file: /x}\nserver: {tenant: {system_header: S}}\n", nil, []string{"without dimensions"}},
		"roles of none":    {"database: {url_file: /x}\nroles: [{role: admin, values: [a]}]\n", nil, []string{"roles", "set server.jwt"}},
		"open to all":      {"database: {url_file: /x}\n", nil, []string{"server.address", "insecure_no_authentication"}},
		"open to a net":    {"database: {url_file: /x}\nserver: {address: '10.0.0.1:80'}\n", nil, []string{"server.address"}},
		"open and not":     {"database: {url_file: /x}\nserver: {jwt: {configs: [{issuer_url: i, jwk_cert_file: /y}]}}\ninsecure_no_authentication: true\n", nil, []string{"does not go with server.jwt", "without roles"}},
		"what roles are": {
			"database: {url_file: /x}\nserver: {jwt: {configs: [{issuer_url: i, jwk_cert_file: /y}]}}\nroles:\n- {role: king}\n- {role: adapter, values: [a]}\n" +
				"- {role: reader, values: ['*'], adapters: [a]}\n- {role: adapter, values: [a], adapters: ['*']}\n", nil,
			[]string{`role "king"`, "values:", "adapter_claim, one of them", "go with role adapter", "a caller does not report as any"},
		},
		"level":           {"database: {url_file: /x}\nlog: {level: loud}\n", nil, []string{"log.level"}},
		"by flag":         {"database: {url_file: /x}\n", []string{"--stuck-after=-1s"}, []string{"stuck_after"}},
		"schemas":         {"database: {url_file: /x}\nspec_schemas: /none\n", nil, []string{"spec_schemas"}},
		"kinds, at once":  {"database: {url_file: /x}\nentities:\n- {kind: A, plural: as, parent_kind: B}\n- {kind: A, plural: changes}\n", nil, []string{`"B" is not registered`, "twice", "route of the API"}},
		"a rule's gate":   {"database: {url_file: /x}\nentities:\n- kind: A\n  plural: as\n  conditions:\n  - type: M\n    when: {expression: nope}\n", nil, []string{"unknown variable or function nope"}},
		"not a kind list": {"database: {url_file: /x}\nentities: 3\n", nil, []string{"entities"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := api.New()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(append([]string{"config", "validate", "--config", file(t, "api.yaml", tc.config)}, tc.args...))

			err := cmd.Execute()
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v lacks %q", err, want)
				}
			}
		})
	}
}

// program is the running command.
type program struct {
	url   string
	stop  context.CancelFunc
	ended chan error
	log   *bytes.Buffer
	// logged is closed once log is whole.
	logged chan struct{}
}

// launch runs the command with a file, on ports of its own, until it listens.
func launch(t *testing.T, config string) *program {
	t.Helper()

	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	p := &program{stop: stop, ended: make(chan error, 1), log: &bytes.Buffer{}, logged: make(chan struct{})}

	cmd := api.New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetErr(writer)
	cmd.SetArgs([]string{"--config", file(t, "api.yaml", config)})

	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = writer.CloseWithError(io.EOF)
		p.ended <- err
	}()

	lines := bufio.NewScanner(reader)
	for lines.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "the fleet API listens" {
			p.url = line.Address

			break
		}
	}

	if p.url == "" {
		t.Fatalf("the program did not start: %v", <-p.ended)
	}

	go func() {
		defer close(p.logged)

		for lines.Scan() {
			p.log.Write(append(lines.Bytes(), '\n'))
		}
	}()

	t.Cleanup(stop)

	return p
}

// TestRun is the program's life: it makes its tables, answers, and ends while somebody
// waits for changes.
func TestAPIRun(t *testing.T) {
	secret := database.Database(t)
	health, metrics := loopback.Address(t), loopback.Address(t)
	p := launch(t, fmt.Sprintf(`
server: {address: "127.0.0.1:0", health_address: %q, metrics_address: %q}
database: {url_file: %s}
`, health, metrics, file(t, "url", secret+"\n")))

	base := "http://" + p.url + "/api/hyperfleet/v1"

	got, err := http.Post(base+"/clusters", "application/json", strings.NewReader(`{"name":"home","spec":{}}`))
	if err != nil || got.StatusCode != http.StatusCreated {
		t.Fatalf("%v %v", got, err)
	}

	_ = got.Body.Close()

	ready, err := http.Get("http://" + health + "/readyz")
	if err != nil || ready.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", ready, err)
	}

	_ = ready.Body.Close()

	var cursor openapi.ChangeList
	read(t, base+"/changes", &cursor)

	waiting := make(chan openapi.ChangeList, 1)

	go func() {
		var page openapi.ChangeList
		read(t, base+"/changes?wait=55&after="+cursor.Next, &page)
		waiting <- page
	}()

	for !strings.Contains(text(t, "http://"+metrics+"/metrics"), "hyperfleet_api_requests_in_flight 1") {
		time.Sleep(lookAt)
	}

	p.stop()

	if page := <-waiting; page.Next != cursor.Next {
		t.Errorf("%+v", page)
	}

	if err := <-p.ended; err != nil {
		t.Error(err)
	}

	<-p.logged

	if strings.Contains(p.log.String(), secret) {
		t.Error("the database's URL is in the log")
	}
}

func text(t *testing.T, url string) string {
	t.Helper()

	got, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = got.Body.Close() }()

	data, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

func read(t *testing.T, url string, into any) {
	t.Helper()

	got, err := http.Get(url)
	if err != nil {
		t.Error(err)

		return
	}

	defer func() { _ = got.Body.Close() }()

	if err := json.NewDecoder(got.Body).Decode(into); err != nil || got.StatusCode != http.StatusOK {
		t.Errorf("%s: %d %v", url, got.StatusCode, err)
	}
}
