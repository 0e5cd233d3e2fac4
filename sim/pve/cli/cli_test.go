// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve/cli"
	"github.com/hyperfleet/hyperfleet/sim/pve/control"
)

// run starts the command and returns what it exports.
func run(t *testing.T, args ...string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := cli.New()
	cmd.SetArgs(args)
	cmd.SetOut(w)
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = w.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("pvesim: %v", err)
		}
	})
	return exports(t, r, 5)
}

func exports(t *testing.T, r io.Reader, n int) map[string]string {
	t.Helper()
	out := map[string]string{}
	lines := bufio.NewScanner(r)
	for len(out) < n && lines.Scan() {
		kv, ok := strings.CutPrefix(lines.Text(), "export ")
		k, v, ok2 := strings.Cut(kv, "=")
		if !ok || !ok2 {
			t.Fatalf("line %q", lines.Text())
		}
		out[k] = strings.Trim(v, "'")
	}
	if len(out) < n {
		t.Fatalf("exports %v, %v", out, lines.Err())
	}
	return out
}

// TestServe reaches the cluster and its control API with what -E prints.
func TestServe(t *testing.T) {
	t.Parallel()
	env := run(t, "-E", "--nodes", "5", "--clone-delay", "1s", "--parallel-clones", "1", "--guest", "script", "--guest-stays", "1s")
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // #nosec G402 -- pinned in the product, not here
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, env["PVE_URL"]+"/api2/json/nodes", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", fmt.Sprintf("PVEAPIToken=%s=%s", env["PVE_TOKEN_ID"], env["PVE_TOKEN_SECRET"]))
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"pve5"`)) {
		t.Errorf("%s %s %v", res.Status, body, err)
	}
	f, err := control.Client{URL: env["PVESIM_CONTROL"]}.Floor(t.Context(), 10, time.Second)
	if err != nil || f.Seconds != 3 {
		t.Errorf("floor %+v %v", f, err)
	}
}

// TestEnvFile writes the lines where they are asked for.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "env")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := cli.New()
	cmd.SetArgs([]string{"-E=" + name, "--faults", "slow=0.1@1s"})
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	for {
		if raw, err := os.ReadFile(name); err == nil {
			if got := exports(t, bytes.NewReader(raw), 5); got["PVE_FINGERPRINT"] == "" {
				t.Errorf("exports %v", got)
			}
			break
		}
		select {
		case err := <-done:
			t.Fatalf("ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--control", "0.0.0.0:0"}, "loopback"},
		{[]string{"--control", "here"}, "--control"},
		{[]string{"--faults", "nope=1"}, "unknown name"},
		{[]string{"--guest", "exec"}, "needs a program"},
		{[]string{"--guest", "x"}, "unknown kind"},
		{[]string{"--model", "/does/not/exist"}, "read model"},
		{[]string{"--listen", "127.0.0.1:x"}, "listen on"},
		{[]string{"extra"}, "unknown command"},
	} {
		cmd := cli.New()
		cmd.SetArgs(tc.args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %s", tc.args, err, tc.want)
		}
	}
}
