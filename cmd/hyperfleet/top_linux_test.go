// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/top"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// terminal is a pseudo-terminal on which the command runs.
type terminal struct {
	t       *testing.T
	outside *os.File
	seen    string
	ended   chan error
}

// onTerminal runs the command on a pseudo-terminal.
func onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()

	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals: %v", err)
	}

	t.Cleanup(func() { _ = outside.Close() })
	must(t, unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0))

	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	must(t, err)

	inside, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)

	out := &terminal{t: t, outside: outside, ended: make(chan error, 1)}
	out.resize(120, 30)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)

	cmd := top.New()
	cmd.SetIn(inside)
	cmd.SetOut(inside)
	cmd.SetArgs(append(args, "--interval", "200ms", "--kubeconfig", env.Kubeconfig(t, env.Config)))

	go func() {
		out.ended <- cmd.ExecuteContext(ctx)

		_ = inside.Close() // makes reads from outside fail
	}()

	return out
}

func (s *terminal) resize(width, height int) {
	s.t.Helper()

	size := &unix.Winsize{Row: uint16(height), Col: uint16(width)}
	must(s.t, unix.IoctlSetWinsize(int(s.outside.Fd()), unix.TIOCSWINSZ, size))
}

func (s *terminal) press(keys string) {
	s.t.Helper()

	_, err := s.outside.WriteString(keys)
	must(s.t, err)
}

// read reads output until the output satisfies a condition, and then discards it.
func (s *terminal) read(what string, shown func(text string) bool) {
	s.t.Helper()

	buffer := make([]byte, 4096)

	for !shown(s.seen) {
		n, err := s.outside.Read(buffer)
		if err != nil {
			s.t.Fatalf("%v; the screen had, without %s:\n%q", err, what, s.seen)
		}

		s.seen += string(buffer[:n])
	}

	s.seen = ""
}

// expect waits for a text.
func (s *terminal) expect(text string) {
	s.t.Helper()
	s.read(text, func(seen string) bool { return strings.Contains(seen, text) })
}

// fits resizes the terminal, and waits for a frame that fits and satisfies a condition.
func (s *terminal) fits(width, height int, shown func(lines []string) bool) {
	s.t.Helper()
	s.resize(width, height)

	s.read(fmt.Sprintf("a frame of %d by %d", width, height), func(seen string) bool {
		for frame := range strings.SplitSeq(seen, screen.Home) {
			frame, _, whole := strings.Cut(frame, screen.EraseBelow)
			lines := strings.Split(strings.ReplaceAll(frame, screen.EraseLine, ""), "\r\n")

			if whole && len(lines) == max(height, minHeight) && narrow(lines, max(width, minWidth)) && shown(lines) {
				return true
			}
		}

		return false
	})
}

// Minimum size of a frame.
const minWidth, minHeight = 40, 8

func narrow(lines []string, width int) bool {
	for _, line := range lines {
		line = strings.NewReplacer(screen.Bold, "", screen.Plain, "", screen.Reverse, "").Replace(line)
		if utf8.RuneCountInString(line) > width {
			return false
		}
	}

	return true
}

// TestTop checks that keys open pools and jobs and quit the program, that frames fit any size and contain the selected
// row, and that the terminal is restored.
func TestTop(t *testing.T) {
	t.Setenv("TERM", "xterm")

	s := onTerminal(t, "-n", seeded(t))
	s.expect(screen.EnterAlternateScreen)
	s.expect("24 jobs wait")
	s.expect("[1 pools 3]")
	s.press("\x1b[B\x1b[A\x1b[B\r") // down, up, down, enter
	s.expect("21 queued")
	s.press("\x1b")
	s.expect("[1 pools 3]")
	s.press("\t")
	s.expect("[2 machines 16]")
	s.press("\t")
	s.expect("[3 jobs 39]")
	s.press(strings.Repeat("j", 50)) // more than there are

	for _, size := range [][2]int{{160, 40}, {80, 24}, {40, 8}, {1, 1}} {
		// The last row is above the line of keys, or above lines that are empty.
		s.fits(size[0], size[1], func(lines []string) bool {
			rows := strings.TrimRight(strings.Join(lines[:len(lines)-1], "\n"), "\n")

			return strings.Contains(rows[strings.LastIndex(rows, "\n")+1:], screen.Reverse+"unit tests")
		})
	}

	s.press("\r")
	s.fits(80, 24, func(lines []string) bool { return strings.Contains(lines[0], "github-actions-29679400025") })
	s.press("\x1b1")
	s.expect("[1 pools 3]")
	s.press("q")
	s.expect(screen.LeaveAlternateScreen)
	must(t, <-s.ended)

	interrupted := onTerminal(t, "-n", env.Namespace(t))
	interrupted.expect("[1 pools 0]")
	interrupted.press("\x03")
	interrupted.expect(screen.LeaveAlternateScreen)
	must(t, <-interrupted.ended)
}

func TestTopOnce(t *testing.T) {
	t.Parallel()

	seeded(t)
	execute(t, env.Config, "top", "--once", "--list", "jobs").expectSuccess(t,
		"jobs wait", "unit tests", "acme/app", "AtMaximum: RunnerPool linux-large has all 12 machines")

	for _, args := range [][]string{{"--list", "cars"}, {"--interval", "1ms"}, {"--colour"}} {
		execute(t, nil, append([]string{"top"}, args...)...).expectFailure(t, cli.ExitUsage)
	}
}
