// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plantest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
)

// Host runs scripts on this machine, with fake programs that replace those of a host. Scripts find
// its folder in $HOST. The file "calls" in that folder records each call of a program.
type Host struct {
	t   *testing.T
	Dir string
}

// NewHost returns a fake host whose programs are the given bash scripts, by name. Its sleep returns at
// once, and its chown does nothing.
func NewHost(t *testing.T, programs map[string]string) Host {
	t.Helper()

	h := Host{t: t, Dir: t.TempDir()}
	h.AddProgram("sleep", "")
	h.AddProgram("chown", "")

	for name, script := range programs {
		h.AddProgram(name, script)
	}

	return h
}

// AddProgram adds a program.
func (h Host) AddProgram(name, script string) {
	h.t.Helper()

	text := "#!/bin/bash\nset -u\nprintf '%s %s\\n' " + name + " \"$*\" >>\"$HOST/calls\"\n" + script + "\n"
	h.Write(filepath.Join("bin", name), text)

	//nolint:gosec // G302: a program has to be one
	if err := os.Chmod(filepath.Join(h.Dir, "bin", name), 0o700); err != nil {
		h.t.Fatal(err)
	}
}

// Run passes input, a script and its data, to the interpreter, as SSH would. It returns the output, and an error if
// the script failed.
func (h Host) Run(input string) (string, error) {
	h.t.Helper()

	var out bytes.Buffer

	words := strings.Fields(plan.Interpreter)
	cmd := exec.CommandContext(h.t.Context(), words[0], words[1:]...) //nolint:gosec // G204: a constant
	cmd.Env = []string{"HOST=" + h.Dir, "PATH=" + filepath.Join(h.Dir, "bin") + ":" + os.Getenv("PATH"), "TMPDIR=" + h.Dir}
	// The input must be a pipe, as with SSH. A shell would read ahead in a file.
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()

	return out.String(), err
}

// Must runs input, a script and its data, which must succeed.
func (h Host) Must(input string) {
	h.t.Helper()

	if out, err := h.Run(input); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
}

// Refuses runs input, a script and its data, which must fail and print the reason.
func (h Host) Refuses(input, reason string) {
	h.t.Helper()

	if out, err := h.Run(input); err == nil || !strings.Contains(out, reason) {
		h.t.Errorf("ended with %v and said %q, want %q", err, out, reason)
	}
}

// Path returns the path of a file.
func (h Host) Path(name string) string { return filepath.Join(h.Dir, name) }

// Write writes a file.
func (h Host) Write(name, text string) {
	h.t.Helper()

	if err := os.MkdirAll(filepath.Dir(h.Path(name)), 0o700); err != nil {
		h.t.Fatal(err)
	}

	if err := os.WriteFile(h.Path(name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// Read returns the content of a file, or an empty string if the file does not exist.
func (h Host) Read(name string) string {
	h.t.Helper()

	text, err := os.ReadFile(h.Path(name))
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}

	return string(text)
}

// Calls returns the calls of programs since the previous Calls, except sleep and chown.
func (h Host) Calls() []string {
	h.t.Helper()

	var out []string

	for line := range strings.Lines(h.Read("calls")) {
		if !strings.HasPrefix(line, "sleep ") && !strings.HasPrefix(line, "chown ") {
			out = append(out, strings.TrimSpace(line))
		}
	}

	h.Write("calls", "")

	return out
}

// Left returns the names of the files in a folder.
func (h Host) Left(name string) []string {
	h.t.Helper()

	entries, err := os.ReadDir(h.Path(name))
	if err != nil {
		h.t.Fatal(err)
	}

	var out []string
	for _, entry := range entries {
		out = append(out, entry.Name())
	}

	return out
}
