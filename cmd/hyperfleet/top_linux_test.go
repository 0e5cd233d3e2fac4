// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3/color"
	"github.com/gdamore/tcell/v3/vt"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// terminal is a terminal emulator on a pseudo-terminal, in which the program runs.
type terminal struct {
	t               *testing.T
	outside, inside *os.File
	emulator        vt.MockTerm
	width, height   int
}

// startTop runs `hyperfleet top` in a terminal, with additional environment variables.
func startTop(t *testing.T, variables []string, args ...string) *terminal {
	t.Helper()

	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals: %v", err)
	}

	t.Cleanup(func() { _ = outside.Close() })
	must.Do(t, unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0))

	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	must.Do(t, err)

	inside, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must.Do(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	context.AfterFunc(ctx, func() { _ = inside.Close() }) // reads from outside fail

	out := &terminal{t: t, outside: outside, inside: inside, emulator: vt.NewMockTerm()}
	must.Do(t, out.emulator.Start())
	t.Cleanup(func() { _ = out.emulator.Stop() })
	out.resize(120, 30)

	// The shell keeps the pseudo-terminal open when the program has ended, and shows what the program leaves.
	args = append([]string{
		"-c", `"$0" "$@"; echo "code $?"; stty -a`, os.Args[0], "top", "--interval", "200ms", "--kubeconfig", env.Kubeconfig(t, env.Config),
	}, args...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = append([]string{envProgram + "=1", "TERM=xterm-256color", "PATH=" + os.Getenv("PATH")}, variables...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inside, inside, inside
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must.Do(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })

	return out
}

func (s *terminal) resize(width, height int) {
	s.t.Helper()

	s.width, s.height = width, height
	s.emulator.SetSize(vt.Coord{X: vt.Col(width), Y: vt.Row(height)})

	size := &unix.Winsize{Row: uint16(height), Col: uint16(width)}
	must.Do(s.t, unix.IoctlSetWinsize(int(s.outside.Fd()), unix.TIOCSWINSZ, size))
}

func (s *terminal) press(keys string) {
	s.t.Helper()

	_, err := s.outside.WriteString(keys)
	must.Do(s.t, err)
}

// lines returns the lines of the screen.
func (s *terminal) lines() []string {
	out := make([]string, s.height)

	for y := range out {
		for x := range s.width {
			out[y] += max(s.cell(x, y).C, " ")
		}
	}

	return out
}

func (s *terminal) cell(x, y int) vt.Cell {
	return s.emulator.GetCell(vt.Coord{X: vt.Col(x), Y: vt.Row(y)})
}

// row returns the first line that contains a text, and the style at its beginning.
func (s *terminal) row(text string) (string, vt.Style) {
	s.t.Helper()

	lines := s.lines()

	y := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, text) })
	if y < 0 {
		s.t.Fatalf("no line has %q:\n%s", text, strings.Join(lines, "\n"))
	}

	return lines[y], s.cell(0, y).S
}

// wait reads output until the screen satisfies a condition.
func (s *terminal) wait(what string, shown func(lines []string) bool) {
	s.t.Helper()

	buffer := make([]byte, 4096)

	for !shown(s.lines()) {
		n, err := s.outside.Read(buffer)
		if err != nil {
			s.t.Fatalf("%v, before the screen shows %s:\n%s", err, what, strings.Join(s.lines(), "\n"))
		}

		_, err = s.emulator.Write(buffer[:n])
		must.Do(s.t, err)
	}
}

// expect waits for texts on the screen, and for other texts, which begin with "!", to disappear.
func (s *terminal) expect(texts ...string) {
	s.t.Helper()

	s.wait(strings.Join(texts, " and "), func(lines []string) bool {
		screen := strings.Join(lines, "\n")

		return !slices.ContainsFunc(texts, func(text string) bool {
			absent, isAbsent := strings.CutPrefix(text, "!")

			return strings.Contains(screen, absent) == isAbsent
		})
	})
}

// pressApart writes a sequence in two parts, so that the program reads the first part alone.
func (s *terminal) pressApart(first, second string) {
	s.t.Helper()
	s.press(first)

	for unread := 1; unread > 0; {
		time.Sleep(10 * time.Millisecond)

		var err error

		unread, err = unix.IoctlGetInt(int(s.inside.Fd()), unix.TIOCINQ)
		must.Do(s.t, err)
	}

	s.press(second)
}

// quit presses a key, and checks that the program ends and restores the terminal.
func (s *terminal) quit(key string) {
	s.t.Helper()
	s.resize(120, 30) // has space for the output of the shell
	s.press(key)
	s.expect("code 0", " icanon", " echo ")
}

// TestTop checks that keys open pools and jobs and quit the program, that frames fit any size and contain the selected
// row, and that the terminal is restored.
func TestTop(t *testing.T) {
	t.Parallel()

	s := startTop(t, nil, "-n", seedFleet(t))
	s.expect("24 jobs wait", "[1 pools 3]")
	s.press("\x1b[B\x1b[A\x1b[B\r") // down, up, down, enter
	s.expect("21 queued", "Conditions:")
	s.press("\x1b")
	s.expect("[1 pools 3]")
	s.press("\t")
	s.expect("[2 machines 16]")
	s.press("\t")
	s.expect("[3 jobs 39]")
	s.press(strings.Repeat("j", 50)) // more than there are

	for _, size := range [][2]int{{160, 40}, {80, 24}, {40, 8}} {
		s.resize(size[0], size[1])
		s.wait(fmt.Sprintf("a frame of %d by %d", size[0], size[1]), func(lines []string) bool {
			last := lastRow(lines)

			return strings.HasPrefix(lines[last], "unit tests") && s.cell(0, last).S.Attr()&vt.Reverse != 0 &&
				strings.HasPrefix(lines[len(lines)-1], "?: keys")
		})
	}

	s.resize(1, 1)
	s.press("?")
	s.resize(80, 24)
	s.expect("Keys", "Colors")
	s.press("q\r")
	s.expect("github-actions-29679400025")
	s.press("q")
	s.expect("[3 jobs 39]")
	s.press("1")
	s.expect("[1 pools 3]")
	s.quit("q")

	interrupted := startTop(t, nil, "-n", env.Namespace(t))
	interrupted.expect("[1 pools 0]", "none")
	interrupted.quit("\x03")
}

// lastRow returns the index of the last line that is not empty, above the line of keys.
func lastRow(lines []string) int {
	for y := len(lines) - 2; y > 0; y-- {
		if strings.TrimSpace(lines[y]) != "" {
			return y
		}
	}

	return 0
}

// TestTopFiltersAndSorts checks the filter and the order of rows.
func TestTopFiltersAndSorts(t *testing.T) {
	t.Parallel()

	s := startTop(t, nil, "-n", seedFleet(t))
	s.expect("[1 pools 3]", "linux-large")
	s.press("/LINUX")
	s.expect("2 of 3 match /LINUX_", "linux-large", "!arm64")
	s.press(" smaé")
	s.expect("0 of 3 match /LINUX smaé_", "none")
	s.press("\x7f")
	s.expect("1 of 3 match /LINUX sma_", "!linux-large")
	s.press("\r")
	s.expect("1 of 3 match /LINUX sma", "!sma_")
	s.press("\t") // each list has a filter of its own
	s.expect("[2 machines 16]", "!match")
	s.press("1\x1b")
	s.expect("[1 pools 3]", "!match", "arm64")
	s.press("/q")
	s.expect("/q_")
	s.press("\x1b")
	s.expect("!match", "arm64")

	order := func(names ...string) {
		t.Helper()
		s.wait(strings.Join(names, ", "), func(lines []string) bool {
			var got []string

			for _, line := range lines {
				if name, _, _ := strings.Cut(line, " "); slices.Contains(names, name) {
					got = append(got, name)
				}
			}

			return slices.Equal(got, names)
		})
	}

	s.press("s")
	s.expect("POOL↑")
	order("arm64", "linux-large", "linux-small")
	s.press("r")
	s.expect("POOL↓")
	order("linux-small", "linux-large", "arm64")
	s.press("rsss") // QUEUED is the fourth column, and numbers are not sorted as texts
	s.expect("QUEUED↑", "!POOL↑")
	order("linux-small", "arm64", "linux-large")
	s.press("?")
	s.expect("sort by the next column", "!QUEUED")
	s.expect(documentedKeys(t)...)
	s.press("q")
	s.expect("QUEUED↑")
	s.quit("q")
}

// documentedKeys returns the keys in the table of the guide.
func documentedKeys(t *testing.T) []string {
	t.Helper()

	guide, err := os.ReadFile("../../docs/guides/web.md")
	must.Do(t, err)

	_, table, _ := strings.Cut(string(guide), "| Key | What it does |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")

	var out []string

	for line := range strings.SplitSeq(table, "\n") {
		keys, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for i, key := range strings.Split(keys, "`") {
			if i%2 == 1 {
				out = append(out, key)
			}
		}
	}

	if len(out) < 10 {
		t.Fatalf("the guide lists the keys %q", out)
	}

	return out
}

// TestTopLogs checks that the log of a job is shown, and that top says why there is no log.
func TestTopLogs(t *testing.T) {
	t.Parallel()

	s := startTop(t, nil, "-n", seedFleet(t))
	s.expect("[1 pools 3]")
	s.press("l")
	s.expect("No log: a pool has no log.")
	s.press("\x1b")
	s.expect("[1 pools 3]")
	s.press("2/m010\rl")
	s.expect("github-actions-29679400010", "No log: the machine sends the log with its last report")
	s.press("q")
	s.expect("[2 machines 16]")
	s.press("/") // the filter of before
	s.expect("m010_")
	s.press(strings.Repeat("\x7f", 4) + "m050\rl")
	s.expect("No log: the machine has no job yet.")
	s.press("q")
	s.expect("[2 machines 16]")
	s.press("3/failure\rl")
	s.expect("Log, from RunnerLog", "--- FAIL: TestRefund", "<script>alert(1)</script>")
	s.press("q")
	s.expect("[3 jobs 39]")
	s.resize(40, 8) // lines that are too long are wrapped, and the end of the log is shown
	s.press("l")
	s.expect("ompleted with result: Failed")
	s.press(strings.Repeat("k", 50))
	s.expect("Job         ci/github-actions-296794000")
	s.press("q")
	s.expect("[3 jobs 39]")
	s.quit("q")
}

// TestTopLoadsLogsInBackground checks that the keys work while the API server does not respond with a log.
func TestTopLoadsLogsInBackground(t *testing.T) {
	t.Parallel()

	upstream, err := url.Parse(env.Config.Host)
	must.Do(t, err)

	transport, err := rest.TransportFor(env.Config)
	must.Do(t, err)

	release := make(chan struct{})
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)

			if strings.Contains(r.In.URL.Path, "/runnerlogs") {
				<-release
			}
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.CloseClientConnections)

	slow := env.Kubeconfig(t, &rest.Config{Host: server.URL})
	s := startTop(t, nil, "-n", seedFleet(t), "--kubeconfig", slow, "--list", "jobs")
	s.expect("[3 jobs 39]")
	s.press("/failure\rl")
	s.expect("Loading...")
	s.press("q")
	s.expect("[3 jobs 39]")
	s.press("l")
	s.expect("Loading...")
	close(release)
	s.expect("Log, from RunnerLog", "--- FAIL: TestRefund")
	s.press("q")
	s.expect("[3 jobs 39]")
	s.quit("q")
}

// TestTopColors checks the colors of states, and that NO_COLOR and a dumb terminal have none.
func TestTopColors(t *testing.T) {
	t.Parallel()

	namespace := seedFleet(t)

	for name, variables := range map[string][]string{"colors": nil, "no colors": {"NO_COLOR=1"}} {
		s := startTop(t, variables, "-n", namespace)
		none := color.Silver // of the emulator

		check := func(row, state string, want color.Color) {
			t.Helper()

			line, style := s.row(row)
			if variables != nil {
				want = none
			}

			if style.Fg() != want || !strings.Contains(line, state) {
				t.Errorf("%s: %s has color %s, want %s and the state %s", name, line, style.Fg(), want, state)
			}
		}

		s.expect("[1 pools 3]")
		check("linux-small", "Ready", color.Green)
		check("arm64", "MachinesFailing", color.Maroon)
		s.press("2")
		s.expect("[2 machines 16]")
		check("linux-small-m050", "Ready", color.Green)
		check("linux-large-m003", "Bootstrapping", color.Olive)
		s.press("3/AtMaximum")
		s.expect("21 of 39")
		check("acme/", "Queued", color.Olive)
		s.press("\x1b")
		s.expect("!21 of 39")
		s.press("/failure")
		s.expect("2 of 39")
		check("acme/", "failure", color.Maroon)
		s.quit("\x03")
	}

	dumb := startTop(t, []string{"TERM=dumb"}, "-n", namespace, "--once")
	dumb.expect("code 0")

	if line, style := dumb.row("arm64"); style.Fg() != color.Silver {
		t.Errorf("%s has color %s", line, style.Fg())
	}
}

// TestTopReadsSplitSequences checks that an escape sequence is a key even if its bytes arrive in several reads.
func TestTopReadsSplitSequences(t *testing.T) {
	t.Parallel()

	// The program waits long for the rest of a sequence, so that the test does not depend on the speed of the computer.
	s := startTop(t, []string{"TCELL_ESCDELAY=60000"}, "-n", seedFleet(t))
	s.expect("[1 pools 3]")
	s.pressApart("\x1b", "[B")
	s.pressApart("\x1b[", "B")
	s.wait("the third row to be selected", func([]string) bool {
		_, style := s.row("linux-small")

		return style.Attr()&vt.Reverse != 0
	})
	s.quit("q")
}

func TestTopOnce(t *testing.T) {
	t.Parallel()

	seedFleet(t)
	execute(t, env.Config, "top", "--once", "--list", "jobs").expectSuccess(t,
		"jobs wait", "unit tests", "acme/app", "AtMaximum: RunnerPool linux-large has all 12 machines")
	execute(t, env.Config, "top", "--once", "-n", "nowhere").expectFailure(t, cli.ExitFailed, "namespace nowhere does not exist")

	for _, args := range [][]string{{"--list", "cars"}, {"--interval", "1ms"}, {"--colour"}} {
		execute(t, nil, append([]string{"top"}, args...)...).expectFailure(t, cli.ExitUsage)
	}
}

// TestTopPictures takes pictures of the terminal.
func TestTopPictures(t *testing.T) {
	t.Parallel()

	mux := http.NewServeMux()

	for path, keys := range map[string]string{"/pools": "", "/jobs": "3/acme/checkout\r", "/log": "3/failure\rl"} {
		s := startTop(t, nil, "-n", seedFleet(t))
		s.expect("[1 pools 3]")
		s.press(keys)
		s.expect(map[string]string{"/pools": "linux-large", "/jobs": "11 of 39 match /acme/checkout ", "/log": "RunnerLog"}[path])

		page := s.html()
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })
	}

	takePictures(t, mux, map[string]screenshot{
		"top-pools": {path: "/pools", height: 230}, "top-jobs": {path: "/jobs", height: 390}, "top-log": {path: "/log", height: 330},
	})
}

// html returns a page with the content of the screen.
func (s *terminal) html() string {
	var out strings.Builder

	out.WriteString(`<!doctype html><meta charset="utf-8"><body style="background:#16181d;color:#d6dae3;margin:16px">` +
		`<pre style="font:16px/1.35 monospace;margin:0">`)

	for y := range s.height {
		open := ""

		for x := range s.width {
			cell := s.cell(x, y)
			if span := spanOf(cell.S); span != open {
				out.WriteString("</span>" + span)

				open = span
			}

			out.WriteString(html.EscapeString(max(cell.C, " ")))
		}

		out.WriteString("</span>\n")
	}

	return strings.ReplaceAll(out.String(), env.Config.Host, shownServer)
}

// spanOf returns the tag of a text with a style.
func spanOf(style vt.Style) string {
	foreground, background, weight := "#d6dae3", "#16181d", 400

	colors := map[color.Color]string{color.Green: "#71cf92", color.Olive: "#f0bb62", color.Maroon: "#ff8f8f"}
	if shown, ok := colors[style.Fg()]; ok {
		foreground = shown
	}

	if style.Attr()&vt.Reverse != 0 {
		foreground, background = background, foreground
	}

	if style.Attr()&vt.Bold != 0 {
		weight = 700
	}

	return fmt.Sprintf(`<span style="color:%s;background:%s;font-weight:%d">`, foreground, background, weight)
}
