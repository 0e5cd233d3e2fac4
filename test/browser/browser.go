// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/exe"
)

const openTimeout = 3 * time.Minute

// Color schemes, as flags for Open.
const (
	Light = "--blink-settings=preferredColorScheme=1"
	Dark  = "--blink-settings=preferredColorScheme=0"
)

// Open runs headless Chromium with flags and the URL of a page, and returns its standard output. It skips
// the test if Chromium is not installed.
func Open(t testing.TB, args ...string) string {
	t.Helper()

	program, err := exe.FindTool("watch", "chromium")
	if err != nil {
		t.Skip(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), openTimeout)
	defer cancel()

	args = append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
		// Resolve no host name, so that pages can load nothing from other servers.
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--user-data-dir=" + t.TempDir(),
	}, args...)

	var stderr strings.Builder

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s%s", err, stderr.String(), out)
	}

	return string(out)
}
