// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// demoReport has the fields of the demo's report that the test checks.
type demoReport struct {
	Passed                                                      bool
	Problems                                                    []string
	Jobs, JobsCompleted, VMsCreated, VMsLeft, ForeignVMsTouched int
	ClaimsLeft, RunnersLeft, ISOsLeft                           int
	CallsPerVM, MakespanSeconds, CleanupSeconds                 float64
	TotalCalls                                                  map[string]int
}

// A job runs from the webhook of the simulated GitHub to the deletion of its machine, with the operator's
// program, a real Proxmox VE, a machine that boots with our cloud-init ISO, and the bootstrap service. Nothing
// is left on Proxmox VE, at GitHub, in the API server or on this machine.
func TestJob(t *testing.T) {
	realpve.GetSite(t)

	address := os.Getenv("PVE_ADDRESS")
	if address == "" {
		t.Skip("no address of this machine for machines on the Proxmox VE: set PVE_ADDRESS (go doc ./test/realpve)")
	}

	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"hyperfleet-demo", "hyperfleet", "forgesim"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Fatalf("find the demo's parts: %v: run make build", err)
		}
	}

	jobs := "2"
	if testing.Short() {
		jobs = "1"
	}

	sayf := progress.NewPrinter(t)
	dir := t.TempDir()

	var out bytes.Buffer

	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "hyperfleet-demo"),
		"--hypervisor", "real", "--address", address, "--jobs", jobs, "--max", jobs, "--output", "json")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = &out, &lineWriter{printf: sayf}

	if err := cmd.Run(); err != nil {
		t.Errorf("the demo: %v", err)
	}

	var got demoReport
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("read the demo's report: %v:\n%s", err, out.String())
	}

	if !got.Passed || got.JobsCompleted != got.Jobs || got.VMsCreated != got.Jobs ||
		got.VMsLeft+got.ForeignVMsTouched+got.ClaimsLeft+got.RunnersLeft+got.ISOsLeft > 0 {
		t.Errorf("the demo's report: %s", out.String())
	}

	sayf("calls to Proxmox VE: %.1f per VM, %v in all; jobs took %.0f s, nothing was left after %.1f s",
		got.CallsPerVM, got.TotalCalls, got.MakespanSeconds, got.CleanupSeconds)

	// The demo deletes its folder. All processes share the folder of ports, which stays.
	if left, _ := filepath.Glob(filepath.Join(dir, "hyperfleet-demo-*")); len(left) > 0 && got.Passed {
		t.Errorf("files remain on this machine: %q", left)
	}

	if left := findProcesses(t, dir); len(left) > 0 {
		t.Errorf("processes that still run: %q", left)
	}
}

// findProcesses returns the command lines that contain a folder.
func findProcesses(t *testing.T, dir string) []string {
	t.Helper()

	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}

	var out []string

	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err == nil && bytes.Contains(raw, []byte(dir)) {
			out = append(out, strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}

	return out
}

// lineWriter prints each complete line.
type lineWriter struct {
	printf func(string, ...any)
	rest   []byte
}

func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)

	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}

		l.printf("%s", line)
		l.rest = rest
	}
}
