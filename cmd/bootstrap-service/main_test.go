// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/test/defaults"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

// program is the path of the bootstrap service, and forgesim the path of forgesim, which contains the simulated runners.
// Both are built once for all tests.
var program, forgesim string

func TestMain(m *testing.M) {
	os.Exit(exe.RunWith(func(dir string) int {
		program, forgesim = filepath.Join(dir, "bootstrap-service"), filepath.Join(dir, "forgesim")

		return m.Run()
	}, "cmd/bootstrap-service", "cmd/forgesim"))
}

// maxBinary is the maximum size of the stripped program, which is transferred to each machine.
const maxBinary = 15 << 20

// maxMemory is the maximum memory of the program in KiB. The program must leave the memory to the job.
const maxMemory = 30 << 10

// createRoot creates the root folder of a machine with a runner and a configuration.
func createRoot(t *testing.T, runner, config string) string {
	t.Helper()

	dir := t.TempDir()

	// Prevent other tests from starting a process now. The process would inherit a file that is open for writing, and
	// the file could not be executed ("text file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	for file, text := range map[string]string{"/opt/actions-runner/run.sh": "#!/bin/sh\n" + runner + "\n", api.ConfigPath: config} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

const config = `{"method":"runner-token","platform":"github-actions","runner_name":"r","jit_config":"jit-blob-secret"}`

// watchMemory watches the peak memory of a process (VmHWM in proc(5)) until the process exits. The returned function
// then returns the peak memory in KiB. The value of wait(2) is not used, because it includes the memory of the test that
// started the process.
func watchMemory(pid int) func() int {
	seen := make(chan int)

	go func() {
		most := 0

		for {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, value, there := strings.Cut(string(status), "VmHWM:")

			if err != nil || !there { // the process has exited
				seen <- most

				return
			}

			if now, err := strconv.Atoi(strings.Fields(value)[0]); err == nil {
				most = max(most, now)
			}

			time.Sleep(time.Millisecond)
		}
	}()

	return func() int { return <-seen }
}

func TestProgram(t *testing.T) {
	t.Parallel()

	info, err := os.Stat(program)
	if err != nil || info.Size() > maxBinary {
		t.Errorf("the program has %d bytes, at most %d are allowed (%v)", info.Size(), maxBinary, err)
	}

	const works = `echo "Listening for Jobs"; echo "Running job: a"; echo "Job a completed with result: Succeeded"`

	for name, tc := range map[string]struct {
		runner, config string
		args           []string
		signal         bool
		code           int
		want           string
	}{
		"finished":         {runner: works, config: config, code: 0, want: "hyperfleet: phase=Finished reason=JobDone"},
		"failed":           {runner: "exit 5", config: config, code: 1, want: "hyperfleet: phase=Failed reason=RegistrationFailed"},
		"bad config":       {config: "{}", code: 1, want: "reason=ConfigInvalid"},
		"other path":       {config: "{}", args: []string{"--config", "/none"}, code: 1, want: "no such file"},
		"unknown flag":     {args: []string{"--unknown"}, code: 2, want: "flag provided but not defined"},
		"unknown argument": {args: []string{"x"}, code: 2, want: `unknown argument "x"`},
		"version":          {args: []string{"--version"}, code: 0, want: "commit "},
		"stopped by a signal": {
			runner: `trap 'exit 0' INT; echo "Listening for Jobs"; while :; do sleep 0.02; done`, config: config,
			signal: true, code: 0, want: "reason=Terminated",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := createRoot(t, tc.runner, tc.config)

			var out bytes.Buffer

			cmd := exec.Command(program, append([]string{"--root", dir}, tc.args...)...)
			cmd.Stdout, cmd.Stderr = &out, &out

			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}

			peak := watchMemory(cmd.Process.Pid)

			if tc.signal {
				waitForListening(t, dir)

				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}

			_ = cmd.Wait()

			if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit code %d, want %d; %q in\n%s", code, tc.code, tc.want, &out)
			}

			if most := peak(); most > maxMemory {
				t.Errorf("peak memory %d KiB, at most %d are allowed", most, maxMemory)
			}
		})
	}
}

// TestRunnerEndsWithKilledService checks that the runner exits when the service is killed, because nothing else
// would stop the runner.
func TestRunnerEndsWithKilledService(t *testing.T) {
	t.Parallel()

	dir := createRoot(t, `beat="$(dirname "$0")/beat"; : > "$beat"; echo "Listening for Jobs"; while :; do : > "$beat"; sleep 0.02; done`, config)
	// The program also accepts a path below the root folder, and an empty environment.
	cmd := exec.Command(program, "--root", dir, "--config", filepath.Join(dir, api.ConfigPath))
	cmd.Env = []string{}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	waitForListening(t, dir)

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait()

	beat := filepath.Join(dir, "opt", "actions-runner", "beat")

	time.Sleep(100 * time.Millisecond)

	if err := os.Remove(beat); err != nil {
		t.Fatal(err)
	}

	time.Sleep(200 * time.Millisecond) // the process writes the file every 20 ms

	if _, err := os.Stat(beat); err == nil {
		t.Error("the runner outlives the service")
	}
}

func waitForListening(t *testing.T, dir string) {
	t.Helper()

	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(filepath.Join(dir, api.StatusPath)); err == nil && strings.Contains(string(data), "Listening") {
			return
		}
	}

	t.Fatal("the runner is not online")
}

// listAllowedPackages returns the packages that the program may import in addition to the standard library: packages for SPIFFE
// identities, for the protocols of the SPIRE agent and of secrets managers, and for a TPM.
func listAllowedPackages() []string {
	return []string{
		"github.com/hyperfleet/hyperfleet/guest", "github.com/hyperfleet/hyperfleet/api/guest",
		"github.com/hyperfleet/hyperfleet/cmd/bootstrap-service", "github.com/hyperfleet/hyperfleet/cmd/internal/signals",
		"github.com/hyperfleet/hyperfleet/cmd/internal/version", "github.com/hyperfleet/hyperfleet/cmd/internal/winservice",
		"github.com/spiffe/go-spiffe/", "google.golang.org/grpc", "google.golang.org/protobuf/",
		"google.golang.org/genproto/googleapis/rpc/status", "github.com/go-jose/go-jose/",
		"github.com/hashicorp/", "github.com/mitchellh/", "github.com/go-viper/mapstructure", "github.com/ryanuber/go-glob",
		"github.com/cenkalti/backoff", "github.com/google/go-tpm/", "golang.org/x/",
		"go.yaml.in/yaml/v3", // network data, for the early boot before Ignition
	}
}

// TestLinkedPackages checks that the program contains no code for Kubernetes clusters, because it runs on machines
// together with jobs.
func TestLinkedPackages(t *testing.T) {
	t.Parallel()

	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}

	for dep := range strings.FieldsSeq(string(out)) {
		first, _, _ := strings.Cut(dep, "/")
		standard := !strings.Contains(first, ".") && !strings.HasPrefix(dep, "database/")
		known := func(prefix string) bool { return strings.HasPrefix(dep, prefix) }

		if !standard && !slices.ContainsFunc(listAllowedPackages(), known) {
			t.Errorf("bootstrap-service links %s", dep)
		}
	}
}

// TestDefaultsOfFlags checks the defaults of all flags of the program.
func TestDefaultsOfFlags(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	run(t.Context(), []string{"-help"}, io.Discard, &out)
	defaults.Check(t, "flag bootstrap-service", defaults.OfUsage("bootstrap-service", out.String()))
}
