// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
)

// forgesim buildkite tells its addresses and serves until it is told to end.
func TestBuildkite(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("bkct_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- forgesim.Run(ctx, []string{
			"buildkite", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--organization", "octo", "--queue", "ci,mac",
			"--token-file", token, "--faults", "webhookLost=0.5", "-E",
		}, in, io.Discard)
		_ = in.Close()
	}()
	exports := map[string]string{}
	buffer := make([]byte, 4096)
	for len(exports) < 5 {
		n, err := out.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(strings.TrimSpace(string(buffer[:n])), "\n") {
			name, value, _ := strings.Cut(strings.TrimPrefix(line, "export "), "=")
			exports[name] = value
		}
	}
	if !strings.HasSuffix(exports["BUILDKITE_AGENT_ENDPOINT"], "/v3") || exports["BUILDKITE_AGENT_TOKEN"] != "bkct_x" ||
		exports["BUILDKITE_ORGANIZATION_SLUG"] != "octo" {
		t.Errorf("exports: %v", exports)
	}
	client := control.NewClient(exports["FORGESIM_CONTROL_URL"])
	if _, err := client.Queue(ctx, control.JobSpec{Repo: "octo/app", Labels: []string{"queue=mac"}}); err != nil {
		t.Error(err)
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestBuildkiteRefuses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"unknown flag":       {"--pat-file", "x"},
		"an argument":        {"more"},
		"no such token file": {"--token-file", filepath.Join(t.TempDir(), "none")},
		"unknown fault":      {"--faults", "rain=1"},
		"control for all":    {"--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"},
	} {
		if code := forgesim.Run(t.Context(), append([]string{"buildkite"}, args...), io.Discard, io.Discard); code == 0 {
			t.Errorf("%s: exit 0", name)
		}
	}
	if code := forgesim.Run(t.Context(), []string{"buildkite-agent", "annotate"}, io.Discard, io.Discard); code != 1 {
		t.Errorf("an agent's command that the stand-in does not know: exit %d", code)
	}
}

func TestTheImageHasBuildkiteAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if code := forgesim.Run(t.Context(), []string{"image", "--link", dir}, io.Discard, io.Discard); code != 0 {
		t.Fatalf("exit %d", code)
	}
	info, err := os.Stat(filepath.Join(dir, "usr", "bin", "buildkite-agent"))
	if err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("buildkite-agent: %v, %v", info, err)
	}
}
