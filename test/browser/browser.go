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

const patience = 3 * time.Minute

// Schemes of color, as flags of Open.
const (
	Light = "--blink-settings=preferredColorScheme=1"
	Dark  = "--blink-settings=preferredColorScheme=0"
)

// Open has Chromium open a page, with flags that say what it does with it, and gives what it
// printed. It skips the test where there is no Chromium.
func Open(t testing.TB, args ...string) string {
	t.Helper()

	program, err := exe.Tool("watch", "chromium")
	if err != nil {
		t.Skip(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	args = append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
		// Nothing of the pages comes from elsewhere: no other name is to be had.
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--user-data-dir=" + t.TempDir(),
	}, args...)

	var said strings.Builder

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &said

	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s%s", err, said.String(), out)
	}

	return string(out)
}
