// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/workload"
)

// service is the path of the bootstrap service.
var service string

func TestMain(m *testing.M) {
	os.Exit(exe.RunWith(func(dir string) int {
		service = filepath.Join(dir, "bootstrap-service")

		return m.Run()
	}, "cmd/bootstrap-service"))
}

// findAgent returns the path of a platform's program, or skips the test.
func findAgent(t *testing.T, variable, name string) string {
	t.Helper()

	if path := os.Getenv(variable); path != "" {
		path, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(path)
		}

		if err != nil {
			t.Fatalf("find the program in %s: %v", variable, err)
		}

		return path
	}

	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed: add it to PATH, or set %s to its path", name, variable)
	}

	return path
}

// openProvider resolves the settings and opens their provider.
func openProvider(
	t *testing.T, platform workload.Platform, bootstrap v1alpha1.BootstrapConfig, load v1alpha1.WorkloadConfig, token string,
) (workload.RunnerSpec, workload.Provider) {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name, template.Spec.Bootstrap.Config = "linux", &bootstrap

	runner, err := platform.ResolveRunner(template, v1alpha1.Workload{Config: &load})
	if err != nil {
		t.Fatal(err)
	}

	provider, err := platform.Open(workload.Config{Runner: runner, Template: template, Secrets: map[string]string{"token": token}})
	if err != nil {
		t.Fatal(err)
	}

	return runner, provider
}

// newConfig returns a machine's configuration with a credential of the provider.
func newConfig(t *testing.T, provider workload.Provider, runner workload.RunnerSpec, job *workload.Job) *api.Config {
	t.Helper()

	request := workload.RunnerRequest{Name: "vm-1", Labels: runner.Labels, Job: job}

	credential, err := provider.IssueCredential(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}

	config := &api.Config{
		Method: api.MethodRunnerToken, Platform: runner.Platform, RunnerName: request.Name, Labels: request.Labels, Runner: runner.Program,
	}
	credential.Apply(config)

	return config
}

// machine is a running bootstrap service with a platform's program.
type machine struct {
	t      *testing.T
	dir    string
	config *api.Config
	cmd    *exec.Cmd
	out    bytes.Buffer
}

// startMachine starts a machine whose image has the program at path.
func startMachine(t *testing.T, program, path string, config *api.Config) *machine {
	t.Helper()

	// buildkite-agent has a socket below its home.
	dir := loopback.SocketFolder(t)
	m := &machine{t: t, dir: dir, config: config}
	text, err := json.Marshal(config)

	for file, write := range map[string]func(string) error{
		api.ConfigPath: func(to string) error { return os.WriteFile(to, text, 0o600) },
		path:           func(to string) error { return os.Symlink(program, to) },
	} {
		file = filepath.Join(m.dir, file)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755), write(file))
	}

	m.cmd = exec.Command(service, "--root", m.dir)
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	// The environment of the tests must not affect the program.
	m.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir, "LANG=C.UTF-8"}

	if err = errors.Join(err, m.cmd.Start()); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = m.cmd.Process.Kill() })

	return m
}

// waitForEnd waits until the machine ends, and returns its last report and its log.
func (m *machine) waitForEnd() (api.Report, string) {
	m.t.Helper()

	_ = m.cmd.Wait()

	data, err := os.ReadFile(filepath.Join(m.dir, api.StatusPath))
	if err != nil {
		m.t.Fatalf("%v\n%s", err, &m.out)
	}

	var report api.Report
	if err := json.Unmarshal(data, &report); err != nil {
		m.t.Fatal(err)
	}

	if token := m.config.RunnerToken; token != "" && strings.Contains(m.out.String(), token) {
		m.t.Error("the log contains the credential")
	}

	return report, m.out.String()
}

// want is the expected end of a machine.
type want struct {
	phase              api.Phase
	reason, says       string
	result, conclusion string // result of the job in the report, and its conclusion on the CI platform
}

// check compares the end of a machine with the expected end.
func (w want) check(t *testing.T, report api.Report, log, conclusion string) {
	t.Helper()

	if report.Phase != w.phase || report.Reason != w.reason || !strings.Contains(report.Message, w.says) || report.Result != w.result {
		t.Errorf("ended with %+v, want %+v\n%s", report, w, log)
	}

	if conclusion != w.conclusion {
		t.Errorf("the conclusion on the CI platform is %q, want %q\n%s", conclusion, w.conclusion, log)
	}
}

// terminate sends SIGTERM to the machine.
func (m *machine) terminate() {
	m.t.Helper()

	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
}
