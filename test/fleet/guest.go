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

// Guest is what a VM does once it has booted, in the test's own process: it reads its
// configuration from the cloud-init ISO it was given, runs the stand-in runner with it, tells
// the operator, and powers off.
func Guest(t testing.TB) func(pve.GuestVM) {
	t.Helper()

	return guestBy(t, clock.RealClock{})
}

// guestBy is a Guest with a clock of its own.
func guestBy(t testing.TB, clk clock.WithTicker) func(pve.GuestVM) {
	t.Helper()

	dir := t.TempDir()

	return func(vm pve.GuestVM) {
		cfg, err := GuestConfig(vm.Drive)
		if err != nil {
			vm.Log("read configuration: %v", err)

			return
		}

		Tell(vm.Context, cfg, guest.Report{Phase: guest.PhaseStarted, Time: clk.Now()})
		run(vm, cfg, dir, clk)
	}
}

// powerOff is how long a machine takes to be off.
const powerOff = 300 * time.Millisecond

// Run is the part of Guest after its configuration was read: it gets its credential, and runs
// one job. Callback.Code is the bearer token, whatever proof that is.
func Run(t testing.TB, vm pve.GuestVM, cfg guest.Config) {
	t.Helper()
	run(vm, cfg, t.TempDir(), clock.RealClock{})
}

// run has a folder that goes with the test, which may end before the machine does.
func run(vm pve.GuestVM, cfg guest.Config, dir string, clk clock.WithTicker) {
	root, err := os.MkdirTemp(dir, vm.Name)
	if err != nil {
		vm.Log("make folder: %v", err)

		return
	}

	if err := fetch(vm.Context, &cfg); err != nil {
		vm.Log("get credential: %v", err)
		Tell(vm.Context, cfg, guest.Report{
			Phase: guest.PhaseFailed, Reason: guest.ReasonCredentialRefused, Message: err.Error(), Time: clk.Now(),
		})

		return
	}

	watch := &phases{tell: func(r guest.Report) { Tell(vm.Context, cfg, r) }, clock: clk}
	program := simrunner.Program{
		Root: root, Stdout: watch, Stderr: watch, Getenv: func(string) string { return "" },
		Clock: clk,
	}
	code := program.Main(vm.Context, []string{"run", "--jitconfig", cfg.JITConfig})

	vm.Log("runner exited with %d", code)

	end := guest.Report{Phase: guest.PhaseFinished, Reason: guest.ReasonJobDone, Time: clk.Now()}
	if code != 0 || !watch.ran {
		end.Phase, end.Reason = guest.PhaseFailed, guest.ReasonRunnerFailed
	}

	if vm.Context.Err() == nil {
		Tell(vm.Context, cfg, end)
	}

	// A machine takes a moment to power off. One that was never seen to run is given the time
	// that a listing may be old by, which is long.
	select {
	case <-clk.After(powerOff):
	case <-vm.Context.Done():
	}
}

// GuestConfig reads the machine's configuration from its cloud-init ISO, as cloud-init would
// have written it.
func GuestConfig(drive map[string][]byte) (guest.Config, error) {
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

	return guest.Config{}, fmt.Errorf("no %s in user-data of %d bytes", guest.ConfigPath, len(drive["user-data"]))
}

// fetch gets the credential for the claim code, where the machine has one, with as many
// tries as a test waits for.
func fetch(ctx context.Context, cfg *guest.Config) error {
	if cfg.Callback == nil {
		return nil
	}

	for {
		status, body, err := askCredential(ctx, *cfg.Callback)

		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("the machine is off: %w", context.Cause(ctx))
		case err != nil, status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
			time.Sleep(poll)

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

var errRefused = errors.New("the operator answered")

func askCredential(ctx context.Context, to guest.Callback) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
	}

	request.Header.Set("Authorization", "Bearer "+to.Code)

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("ask for the credential: %w", err)
	}

	defer func() { _ = response.Body.Close() }()

	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("read the answer: %w", err)
	}

	return response.StatusCode, body, nil
}

// phases reads the runner's phases out of what it prints.
type phases struct {
	tell  func(guest.Report)
	clock clock.PassiveClock
	ran   bool
}

func (p *phases) Write(text []byte) (int, error) {
	switch {
	case strings.Contains(string(text), "Listening for Jobs"):
		p.tell(guest.Report{Phase: guest.PhaseListening, Time: p.clock.Now()})
	case strings.Contains(string(text), "Running job"):
		p.ran = true
		p.tell(guest.Report{Phase: guest.PhaseRunning, Time: p.clock.Now()})
	}

	return len(text), nil
}

// Tell reports to the operator; nobody there is no reason to stop.
func Tell(ctx context.Context, cfg guest.Config, report guest.Report) {
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
