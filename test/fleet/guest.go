// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Guest returns a simulated guest that runs in the test's own process. It reads the configuration from the
// VM's cloud-init ISO, runs the simulated runner, reports to the operator, and powers the VM off.
func Guest(t testing.TB) func(pve.GuestVM) {
	t.Helper()

	return newGuest(t, clock.RealClock{})
}

// newGuest returns a Guest that uses the clock.
func newGuest(t testing.TB, clk clock.WithTicker) func(pve.GuestVM) {
	t.Helper()

	dir := t.TempDir()

	return func(vm pve.GuestVM) {
		cfg, err := ReadGuestConfig(vm.Drive)
		if err != nil {
			vm.Log("read configuration: %v", err)

			return
		}

		SendReport(vm.Context, cfg, guest.Report{Phase: guest.PhaseStarted, Time: clk.Now()})
		runGuest(vm, cfg, dir, clk)
	}
}

// powerOffDelay is the time that a machine takes to power off.
const powerOffDelay = 300 * time.Millisecond

// RunGuest does what Guest does after it has read the configuration: it gets the credential and runs one job.
// Callback.Code is the bearer token of the credential request, for example a claim code or a JWT-SVID.
func RunGuest(t testing.TB, vm pve.GuestVM, cfg guest.Config) {
	t.Helper()
	runGuest(vm, cfg, t.TempDir(), clock.RealClock{})
}

// runGuest is RunGuest with a work directory in dir. The test deletes dir, and may end before the machine.
func runGuest(vm pve.GuestVM, cfg guest.Config, dir string, clk clock.WithTicker) {
	root, err := os.MkdirTemp(dir, vm.Name)
	if err != nil {
		vm.Log("create work directory: %v", err)

		return
	}

	if err := fetchCredential(vm.Context, &cfg); err != nil {
		vm.Log("get credential: %v", err)
		SendReport(vm.Context, cfg, guest.Report{
			Phase: guest.PhaseFailed, Reason: guest.ReasonCredentialRefused, Message: err.Error(), Time: clk.Now(),
		})

		return
	}

	reporter := &phaseReporter{send: func(r guest.Report) { SendReport(vm.Context, cfg, r) }, clock: clk}
	program := simrunner.Program{
		Root: root, Stdout: reporter, Stderr: reporter, Getenv: func(string) string { return "" },
		Clock: clk,
	}
	code := program.Main(vm.Context, []string{"run", "--jitconfig", cfg.JITConfig})

	vm.Log("runner exited with %d", code)

	report := guest.Report{Phase: guest.PhaseFinished, Reason: guest.ReasonJobDone, Time: clk.Now()}
	if code != 0 || !reporter.hasRunJob {
		report.Phase, report.Reason = guest.PhaseFailed, guest.ReasonRunnerFailed
	}

	if vm.Context.Err() == nil {
		SendReport(vm.Context, cfg, report)
	}

	// Power off with a delay. If the operator never sees the machine running, it waits for the maximum age of
	// its VM list before it acts, which takes long.
	select {
	case <-clk.After(powerOffDelay):
	case <-vm.Context.Done():
	}
}

// ReadGuestConfig returns the configuration that cloud-init would write from the machine's cloud-init ISO.
func ReadGuestConfig(drive map[string][]byte) (guest.Config, error) {
	var data struct {
		WriteFiles []struct {
			Path    string `json:"path"`
			Content string `json:"content"`
		} `json:"write_files"`
	}

	if err := yaml.Unmarshal(drive["user-data"], &data); err != nil {
		return guest.Config{}, fmt.Errorf("parse user-data: %w", err)
	}

	for _, file := range data.WriteFiles {
		if file.Path != guest.ConfigPath {
			continue
		}

		var cfg guest.Config
		if err := json.Unmarshal([]byte(file.Content), &cfg); err != nil {
			return guest.Config{}, fmt.Errorf("parse %s: %w", file.Path, err)
		}

		return cfg, nil
	}

	return guest.Config{}, fmt.Errorf("parse user-data of %d bytes: it has no file %s", len(drive["user-data"]), guest.ConfigPath)
}

// fetchCredential exchanges the claim code for the credential, and stores the credential in the
// configuration. It does nothing if the configuration has no claim code. It retries transient errors until
// the machine is powered off.
func fetchCredential(ctx context.Context, cfg *guest.Config) error {
	if cfg.Callback == nil {
		return nil
	}

	for {
		status, body, err := requestCredential(ctx, *cfg.Callback)

		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("the machine is powered off: %w", context.Cause(ctx))
		case err != nil, status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
			time.Sleep(defaultPollInterval)

			continue
		case status != http.StatusOK:
			return fmt.Errorf("%w: %d: %s", errRefused, status, body)
		}

		var credential guest.Credential
		if err := json.Unmarshal(body, &credential); err != nil {
			return fmt.Errorf("parse credential: %w", err)
		}

		cfg.SetCredential(credential)

		return nil
	}
}

var errRefused = errors.New("the operator rejected the request")

func requestCredential(ctx context.Context, callback guest.Callback) (httpStatus int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, callback.URL, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("create request: %w", err)
	}

	request.Header.Set("Authorization", "Bearer "+callback.Code)

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("request credential: %w", err)
	}

	defer func() { _ = response.Body.Close() }()

	body, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("read response: %w", err)
	}

	return response.StatusCode, body, nil
}

// phaseReporter parses the runner's output, and reports the runner's phases.
type phaseReporter struct {
	send      func(guest.Report)
	clock     clock.PassiveClock
	hasRunJob bool
}

func (p *phaseReporter) Write(text []byte) (int, error) {
	switch {
	case strings.Contains(string(text), "Listening for Jobs"):
		p.send(guest.Report{Phase: guest.PhaseListening, Time: p.clock.Now()})
	case strings.Contains(string(text), "Running job"):
		p.hasRunJob = true
		p.send(guest.Report{Phase: guest.PhaseRunning, Time: p.clock.Now()})
	}

	return len(text), nil
}

// SendReport sends a report to the operator. It ignores errors.
func SendReport(ctx context.Context, cfg guest.Config, report guest.Report) {
	if cfg.Report == nil {
		return
	}

	body, err := json.Marshal(report)
	if err != nil {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, cfg.Report.URL, strings.NewReader(string(body)))
	if err != nil {
		return
	}

	request.Header.Set("Authorization", "Bearer "+cfg.Report.Token)

	if response, err := http.DefaultClient.Do(request); err == nil {
		_ = response.Body.Close()
	}
}
