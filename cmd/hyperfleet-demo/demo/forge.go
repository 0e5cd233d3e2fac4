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

// Job states of the simulators' control API.
const (
	statusQueued    = "queued"
	statusRunning   = "in_progress"
	statusCompleted = "completed"
	conclusionGood  = "success"
)

// lostTimeout is how soon a job of a machine that crashed fails. GitHub's own takes
// minutes.
const lostTimeout = 15 * time.Second

// forgeSim is the simulated CI platform.
type forgeSim struct {
	process *procrun.Process
	control *control.Client
	// url of the control API.
	url string
}

// startForge starts forgesim with secrets made for this run, pointed at the operator's
// webhook endpoint, which need not be there yet.
func (s *stack) startForge(ctx context.Context) (string, error) {
	var err error
	if s.ports, err = pickPorts(ctx); err != nil {
		return "", err
	}

	if err := s.openGate(ctx); err != nil {
		return "", err
	}

	what := s.setting.platform
	s.setting.forgeToken, s.setting.webhookSecret = what.token+newSecret(), newSecret()
	token, secret := filepath.Join(s.dir, "forge-token"), filepath.Join(s.dir, "webhook-secret")

	for path, text := range map[string]string{token: s.setting.forgeToken, secret: s.setting.webhookSecret} {
		if err := writePrivate(path, []byte(text)); err != nil {
			return "", err
		}
	}

	args := append([]string{
		what.name, "--listen", s.forMachines(0), "--control", loopback(0),
		"--webhook-url", s.webhookURL(), "--webhook-secret-file", secret,
		"--seed", strconv.FormatInt(s.options.Seed, 10), "-E",
	}, what.flags(token)...)
	if faults, ok := s.faultsOf(ownerForge); ok {
		args = append(args, "--faults", faults)
	}

	if s.options.anyFault() && what.loses {
		args = append(args, "--lost-timeout", lostTimeout.String())
	}

	if s.options.Unlimited && what.name == "github" {
		args = append(args, "--no-rate-limits")
	}

	process, err := s.launch(ctx, "forgesim", s.programs.forgesim, args...)
	if err != nil {
		return "", err
	}

	exports, err := s.exports(ctx, process, what.export, "FORGESIM_CONTROL_URL")
	if err != nil {
		return "", err
	}

	s.setting.forgeURL = exports[what.export]
	url := exports["FORGESIM_CONTROL_URL"]
	s.forge = &forgeSim{process: process, control: control.NewClient(url), url: url}

	if s.gate != nil {
		s.setting.forgeURL, err = s.gate.forge(ctx, exports[what.export], s.options.inside())
	}

	return exports[what.export], err
}

// exports waits until a simulator has printed the exports.
func (s *stack) exports(ctx context.Context, process *procrun.Process, want ...string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	var found map[string]string

	err := awaitReady(ctx, process, func(context.Context) error {
		var err error
		found, err = readExports(s.logPath(process.Name()), want...)

		return err
	})

	return found, err
}

// faultsOf gives the value of one program's --faults, and whether there is any.
func (s *stack) faultsOf(who owner) (string, bool) { return s.options.faultsOf(who) }

func (o *Options) faultsOf(who owner) (string, bool) {
	faults, err := parseFaults(o.Faults)
	text := flagFor(who, faults)

	return text, err == nil && text != ""
}

func (o *Options) forgeFault() bool {
	_, ok := o.faultsOf(ownerForge)

	return ok
}

func (o *Options) anyFault() bool { return o.Faults != "" }

// layOutImage makes the files of the machine template's disk: a runner installation.
func (s *stack) layOutImage(ctx context.Context) (string, error) {
	dir := filepath.Join(s.dir, "image")

	process, err := procrun.Start(ctx, procrun.Spec{
		Name: "forgesim-image", Path: s.programs.forgesim, Args: []string{"image", "--link", dir}, Dir: s.dir,
		LogPath: s.logPath("forgesim-image"), Env: environment(),
	})
	if err != nil {
		return "", fmt.Errorf("lay out the template's image: %w", err)
	}

	if err := process.Wait(ctx); err != nil {
		return "", fmt.Errorf("lay out the template's image: %w: %s", err, process.LogTail())
	}

	return dir, nil
}

// jobCounts sums up jobs by what became of them.
type jobCounts struct {
	queued, running, succeeded, failed int
	// starts and ends are when jobs were queued and completed.
	starts, ends []time.Time
}

func (c jobCounts) over() int { return c.succeeded + c.failed }

func (c jobCounts) all() int { return c.queued + c.running + c.over() }

func countJobs(jobs []control.Job) jobCounts {
	var c jobCounts

	for i := range jobs {
		job := &jobs[i]
		c.starts = append(c.starts, job.QueuedAt)

		switch {
		case job.Status == statusRunning:
			c.running++
		case job.Status != statusCompleted:
			c.queued++
		case job.Conclusion == conclusionGood:
			c.succeeded++
		default:
			c.failed++
		}

		if job.Status == statusCompleted {
			c.ends = append(c.ends, job.CompletedAt)
		}
	}

	return c
}
