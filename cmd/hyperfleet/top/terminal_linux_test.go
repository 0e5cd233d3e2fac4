// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// pty is a terminal: what is written to the first file is read from the second, and back.
func pty(t *testing.T) (outside, terminal *os.File) {
	t.Helper()

	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals: %v", err)
	}

	t.Cleanup(func() { _ = outside.Close() })

	if err := unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}

	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}

	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = terminal.Close() })

	return outside, terminal
}

// TestTerminal: on a terminal, keys lead into a job and out of the program, and the terminal is as
// it was before.
func TestTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")

	outside, terminal := pty(t)
	if err := unix.IoctlSetWinsize(int(outside.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 120}); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	cmd := New()
	cmd.SetIn(terminal)
	cmd.SetOut(terminal)
	cmd.SetArgs([]string{"--interval", "200ms", "-n", populate(t), "--kubeconfig", env.Kubeconfig(t, env.Config)})

	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()

	var seen strings.Builder

	expect := func(text string) {
		buffer := make([]byte, 4096)

		for !strings.Contains(seen.String(), text) {
			n, err := outside.Read(buffer)
			if err != nil {
				t.Fatalf("%v; the screen had, without %q:\n%q", err, text, seen.String())
			}

			seen.Write(buffer[:n])
		}

		seen.Reset()
	}

	press := func(keys string) {
		if _, err := outside.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}

	expect(screen.OtherOn)
	expect("1 job waits")
	press("3")
	expect("unit tests")
	press("\r")
	expect("No timeline yet")
	press("\x1b")
	expect("[3 jobs 1]")
	press("q")
	expect(screen.OtherOff)

	if err := <-ended; err != nil {
		t.Error(err)
	}
}
