// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Job states in the control API of forgesim.
const (
	statusQueued      = "queued"
	statusRunning     = "in_progress"
	statusCompleted   = "completed"
	conclusionSuccess = "success"
)

// lostTimeout is the time after which a job fails if its machine has crashed. GitHub itself takes
// minutes.
const lostTimeout = 15 * time.Second

// forgeSim is the simulated CI platform.
type forgeSim struct {
	process *procrun.Process
	control *control.Client
	// url is the URL of the control API.
	url string
}

// startForge starts forgesim with secrets that are generated for this run. forgesim sends webhooks to
// the webhook endpoint of the operator, which may still be down at this time.
func (s *stack) startForge(ctx context.Context) (string, error) {
	var err error
	if s.ports, err = pickPorts(ctx); err != nil {
		return "", err
	}

	if err := s.openMachineAccess(ctx); err != nil {
		return "", err
	}

	chosen := s.settings.platform
	s.settings.forgeToken, s.settings.webhookSecret = chosen.tokenPrefix+generateSecret(), generateSecret()
	token, secret := filepath.Join(s.dir, "forge-token"), filepath.Join(s.dir, "webhook-secret")

	for path, text := range map[string]string{token: s.settings.forgeToken, secret: s.settings.webhookSecret} {
		if err := writePrivateFile(path, []byte(text)); err != nil {
			return "", err
		}
	}

	args := append([]string{
		chosen.name, "--listen", s.machineListenAddress(0), "--control", loopbackHostPort(0),
		"--webhook-url", s.webhookURL(), "--webhook-secret-file", secret,
		"--seed", strconv.FormatInt(s.options.Seed, 10), "-E",
	}, chosen.flags(token)...)
	if faults, ok := s.faultsFlag(injectorForge); ok {
		args = append(args, "--faults", faults)
	}

	if s.options.hasFault() && chosen.hasLostTimeout {
		args = append(args, "--lost-timeout", lostTimeout.String())
	}

	if s.options.Unlimited && chosen.name == "github" {
		args = append(args, "--no-rate-limits")
	}

	process, err := s.launch(ctx, "forgesim", s.programs.forgesim, args...)
	if err != nil {
		return "", err
	}

	exports, err := s.waitForExports(ctx, process, chosen.urlVariable, "FORGESIM_CONTROL_URL")
	if err != nil {
		return "", err
	}

	s.settings.forgeURL = exports[chosen.urlVariable]
	url := exports["FORGESIM_CONTROL_URL"]
	s.forge = &forgeSim{process: process, control: control.NewClient(url), url: url}

	if s.machineAccess != nil {
		s.settings.forgeURL, err = s.machineAccess.proxyForge(ctx, exports[chosen.urlVariable], s.options.hostAddress())
	}

	return exports[chosen.urlVariable], err
}

// waitForExports waits until a simulator has printed lines `export NAME=VALUE` with these names. It returns the
// values of all such lines by name. It gives up after startTimeout.
func (s *stack) waitForExports(ctx context.Context, process *procrun.Process, names ...string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	var exports map[string]string

	err := waitForProbe(ctx, process, func(context.Context) error {
		var err error
		exports, err = readExports(s.logPath(process.Name()), names...)

		return err
	})

	return exports, err
}

func (s *stack) faultsFlag(program injector) (string, bool) { return s.options.faultsFlag(program) }

// faultsFlag returns the value of the --faults flag of one program, and false if the program has no
// faults to inject.
func (o *Options) faultsFlag(program injector) (string, bool) {
	faults, err := parseFaults(o.Faults)
	text := formatFaults(program, faults)

	return text, err == nil && text != ""
}

// hasForgeFault reports whether the demo injects faults into forgesim, the simulator of the CI platform.
func (o *Options) hasForgeFault() bool {
	_, ok := o.faultsFlag(injectorForge)

	return ok
}

func (o *Options) hasFault() bool { return o.Faults != "" }

// createImage creates a folder with the files on the disk of the machine template, which are those of a
// runner installation. It returns the folder.
func (s *stack) createImage(ctx context.Context) (string, error) {
	dir := filepath.Join(s.dir, "image")

	process, err := procrun.Start(ctx, procrun.Spec{
		Name: "forgesim-image", Path: s.programs.forgesim, Args: []string{"image", "--link", dir}, Dir: s.dir,
		LogPath: s.logPath("forgesim-image"), Env: childEnvironment(),
	})
	if err != nil {
		return "", fmt.Errorf("create the template's image: %w", err)
	}

	if err := process.Wait(ctx); err != nil {
		return "", fmt.Errorf("create the template's image: %w: %s", err, process.LogTail())
	}

	return dir, nil
}

// jobCounts has the number of jobs by state.
type jobCounts struct {
	queued, running, succeeded, failed int
	// queueTimes and endTimes are the times at which jobs were queued and completed.
	queueTimes, endTimes []time.Time
}

func (c jobCounts) finished() int { return c.succeeded + c.failed }

func (c jobCounts) total() int { return c.queued + c.running + c.finished() }

func countJobs(jobs []control.Job) jobCounts {
	var c jobCounts

	for i := range jobs {
		job := &jobs[i]
		c.queueTimes = append(c.queueTimes, job.QueuedAt)

		switch {
		case job.Status == statusRunning:
			c.running++
		case job.Status != statusCompleted:
			c.queued++
		case job.Conclusion == conclusionSuccess:
			c.succeeded++
		default:
			c.failed++
		}

		if job.Status == statusCompleted {
			c.endTimes = append(c.endTimes, job.CompletedAt)
		}
	}

	return c
}
